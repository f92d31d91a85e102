(async () => {
  const unpack = async id => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), c => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).text();
  };
  const script = document.createElement('script');
  script.textContent = await unpack('plotly');
  document.head.appendChild(script);
  const tones = JSON.parse(document.getElementById('tones').textContent);
  const packed = await unpack('charts');
  const light = JSON.parse(packed);
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  const charts = dark ? JSON.parse(packed.replace(/"(white|#[0-9a-f]{6}|rgba\([^"]*\))"/g,
    (all, tone) => tone in tones ? JSON.stringify(tones[tone]) : all)) : light;
  const narrow = matchMedia('(max-width: 640px)').matches;
  const fit = figure => {
    const layout = Object.assign({}, figure.layout, {autosize: true});
    if (narrow) {
      layout.margin = Object.assign({}, layout.margin, {l: Math.min(48, (layout.margin || {}).l || 48), r: 8});
      layout.font = Object.assign({}, layout.font, {size: 11});
      if (layout.xaxis && Array.isArray(layout.xaxis.ticktext)) {
        layout.xaxis = Object.assign({}, layout.xaxis,
          {ticktext: layout.xaxis.ticktext.map((text, k) => k % 2 ? '' : text)});
      }
    }
    if (narrow && figure.data.length > 5) {
      layout.legend = Object.assign({}, layout.legend, {y: -0.22, yanchor: 'top', font: {size: 10}});
      layout.height = (layout.height || 380) + 20 * figure.data.length;
    }
    if (narrow) {
      for (const trace of figure.data) {
        if (trace.type === 'heatmap') { delete trace.texttemplate; }
      }
    }
    return layout;
  };
  // A closed part has no width: its charts are drawn when it is opened.
  const drawn = new Set();
  const draw = async () => {
    for (const [key, figure] of Object.entries(charts)) {
      const place = document.getElementById('chart-' + key);
      if (drawn.has(key) || place.closest('details:not([open])')) { continue; }
      drawn.add(key);
      await Plotly.newPlot(place, figure.data, fit(figure), {responsive: true, displaylogo: false,
        displayModeBar: false});
    }
  };
  const reveal = () => {
    const target = document.getElementById(location.hash.slice(1));
    const part = target && target.querySelector(':scope > .part');
    if (part) { part.open = true; }
    if (target) { target.scrollIntoView(); }
  };
  const button = document.getElementById('all');
  if (button) {
    button.onclick = () => document.querySelectorAll('details').forEach(part => { part.open = true; });
  }
  document.addEventListener('toggle', draw, true);
  addEventListener('hashchange', reveal);
  // Paper is narrower than the screen, and white.
  const repaint = (figures, change) => drawn.forEach(key => {
    const layout = fit(figures[key]);
    Plotly.react('chart-' + key, figures[key].data, Object.assign(layout, change(layout)));
  });
  addEventListener('beforeprint', () => repaint(light, layout => ({
    autosize: false, width: 690, height: Math.max(150, 0.66 * layout.height),
    font: Object.assign({}, layout.font, {size: 9}), legend: Object.assign({}, layout.legend, {font: {size: 9}}),
    margin: Object.assign({}, layout.margin, {t: 24, b: 36}),
  })));
  addEventListener('afterprint', () => repaint(charts, () => ({})));
  reveal();
  await draw();
  document.body.dataset.ready = 'yes';
})().catch(error => { document.body.dataset.ready = 'failed: ' + error; });
