"""The look of `report.html`: one style sheet and the script that draws the charts."""

from __future__ import annotations

CSS = """
:root { --ink: #1f2933; --muted: #616e7c; --line: #e4e7eb; --accent: #0b4f9e; --paper: #ffffff; --wash: #f5f7fa; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--wash); color: var(--ink); }
body { font: 15px/1.55 Inter, "Segoe UI", system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 64px; }
header { padding: 8px 0 20px; }
.kicker { margin: 0 0 8px; color: var(--accent); font-weight: 600; letter-spacing: .04em; }
h1 { margin: 0; font-size: 26px; line-height: 1.32; font-weight: 650; max-width: 40em; }
.lead { margin: 12px 0 0; font-size: 17px; }
.about { margin: 12px 0 0; color: var(--muted); }
h1.doubt { border-left: 5px solid #d9730d; padding-left: 14px; }
h1.good { border-left: 5px solid #448361; padding-left: 14px; }
nav { position: sticky; top: 0; z-index: 5; background: var(--wash); padding: 8px 0; display: flex; gap: 4px 18px; }
nav { flex-wrap: wrap; border-bottom: 1px solid var(--line); }
nav a { color: var(--accent); text-decoration: none; font-size: 14px; }
nav a:hover { text-decoration: underline; }
section { scroll-margin-top: 48px; }
.grid { display: grid; grid-template-columns: 1fr 1fr; gap: 8px 28px; }
.grid > div { min-width: 0; }
h2 { margin: 0 0 12px; font-size: 18px; }
h3 { margin: 20px 0 8px; font-size: 15px; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; }
section { padding: 20px 24px; margin: 16px 0; }
.chart { width: 100%; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 8px 10px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th, td { vertical-align: top; }
thead th { color: var(--muted); font-weight: 600; font-size: 13px; border-bottom: 2px solid var(--line); }
thead th { white-space: normal; vertical-align: bottom; }
th:first-child { text-align: left; }
tbody th { font-weight: 500; }
tr.main th, tr.main td { font-weight: 650; background: #eef4fb; }
table.dense th, table.dense td { padding: 4px 10px; font-size: 13px; }
table.dense { margin-top: 16px; }
table.left td, table.left th { text-align: left; }
table.words td:last-child { color: var(--muted); }
table.words th:first-child { min-width: 15em; white-space: normal; }
table.left td { white-space: normal; overflow-wrap: anywhere; }
table.words td { overflow-wrap: break-word; }
.neg { color: #b42318; }
.note { color: var(--muted); font-size: 13px; }
th .note { display: block; font-weight: 400; white-space: normal; max-width: 22em; }
span[title] { text-decoration: underline dotted #9aa5b1; text-underline-offset: 3px; }
summary { cursor: pointer; color: var(--accent); font-weight: 600; }
code { font: 13px/1.5 ui-monospace, "Cascadia Mono", Menlo, monospace; }
@media (max-width: 860px) { .grid { grid-template-columns: 1fr; } }
@media (max-width: 640px) {
  nav { flex-wrap: nowrap; overflow-x: auto; }
  table.words th:first-child { min-width: 8em; }
  main { padding: 16px 10px 40px; }
  h1 { font-size: 20px; }
  section { padding: 14px 12px; border-radius: 6px; }
  th, td { padding: 7px 8px; font-size: 13px; }
  tbody th { white-space: normal; min-width: 9em; }
  th .note { display: none; }
  .scroll th:first-child { position: sticky; left: 0; background: var(--paper); }
  tr.main th:first-child { background: #eef4fb; }
}
@media print {
  body { background: white; }
  section { border: 0; padding: 8px 0; break-inside: avoid; }
}
"""
SCRIPT = """
(async () => {
  const unpack = async id => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), c => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).text();
  };
  const script = document.createElement('script');
  script.textContent = await unpack('plotly');
  document.head.appendChild(script);
  const charts = JSON.parse(await unpack('charts'));
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
"""
