(async () => {
  const unpack = async id => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), c => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).text();
  };
  const script = document.createElement('script');
  script.textContent = await unpack('plotly');
  document.head.appendChild(script);
  const tones = JSON.parse(document.getElementById('tones').textContent);
  const dark = matchMedia('screen and (prefers-color-scheme: dark)').matches;
  const dressed = text => dark ? text.replace(/"(white|#[0-9a-f]{6}|rgba\([^"]*\))"/g,
    (all, tone) => tone in tones ? JSON.stringify(tones[tone]) : all) : text;
  const charts = JSON.parse(dressed(await unpack('charts')));
  const narrow = matchMedia('(max-width: 640px)').matches;
  for (const [key, figure] of Object.entries(charts)) {
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
    await Plotly.newPlot('chart-' + key, figure.data, layout, {responsive: true, displaylogo: false,
      displayModeBar: false});
  }
  document.body.dataset.ready = 'yes';
})().catch(error => { document.body.dataset.ready = 'failed: ' + error; });
