"""The style of a report's page: colours of both schemes, and how it folds up on a phone."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --back: #ffffff; --front: #1c2430; --soft: #5b6675; --line: #d9dee5; --band: #f4f6f9; --warn: #8a5a00;
  --link: #1769c2; --good: #1f8a58; --bad: #cf3f58;
  --train: #1f8a58; --compile: #8c62c4; --start-up: #93a1b1; --restore: #d98e04; --replay: #ecc04a;
  --hold: #cf3f58; --save: #1769c2; --leave: #bfc8d2; --mark: #cf3f58;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #12161c; --front: #e4e9f0; --soft: #9aa7b7; --line: #2f3844; --band: #1a2029; --warn: #e5b45c;
    --link: #6fb0f5; --good: #3fb37f; --bad: #ff7d92;
    --train: #3fb37f; --compile: #a888dd; --start-up: #66758a; --restore: #e8a52e; --replay: #d9bd66;
    --hold: #ec6279; --save: #4f9bec; --leave: #465361; --mark: #ff7d92;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 24px; max-width: 1120px; background: var(--back); color: var(--front);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
h1 { font-size: 22px; line-height: 1.3; margin: 0 0 14px; overflow-wrap: anywhere; }
h1 small { display: block; font-size: 13px; font-weight: 400; color: var(--soft); }
h2 { font-size: 16px; margin: 30px 0 8px; }
p { margin: 4px 0; overflow-wrap: anywhere; }
a { color: var(--link); }
.soft { color: var(--soft); }
.warn { color: var(--warn); }
.ended { background: var(--band); border-left: 5px solid var(--soft); border-radius: 8px; padding: 10px 16px; }
.ended b { display: block; font-size: 20px; line-height: 1.3; }
.ended.finished, .ended.running { border-color: var(--good); }
.ended.failed, .ended.killed, .ended.silent { border-color: var(--bad); }
.figures { display: flex; flex-wrap: wrap; gap: 12px; margin: 12px 0 8px; }
.figures div { background: var(--band); border-radius: 8px; padding: 10px 16px; min-width: 120px; flex: 1 1 0; }
.figures b { display: block; font-size: 22px; line-height: 1.25; font-weight: 600; }
.figures span { color: var(--soft); font-size: 13px; }
.timeline { width: 100%; height: auto; }
.timeline.narrow { display: none; }
.timeline.wide { display: block; }
.timeline text { font-size: 11px; fill: var(--soft); }
@media (max-width: 1000px) { .timeline text { font-size: 15px; } }
.timeline.narrow text { font-size: 12px; }
.timeline .worker { fill: var(--front); font-weight: 600; }
.timeline a:hover, .timeline a:focus { opacity: 0.7; }
.grid { stroke: var(--line); stroke-width: 1; }
.start { fill: none; stroke: var(--soft); stroke-width: 1; }
rect.train { fill: var(--train); } rect.compile { fill: var(--compile); } rect.start-up { fill: var(--start-up); }
rect.restore { fill: var(--restore); } rect.replay { fill: var(--replay); } rect.hold { fill: var(--hold); }
rect.save { fill: var(--save); } rect.leave { fill: var(--leave); }
rect.idle { fill: none; }
.wide rect.unreported, .wide rect.unaccounted { fill: url(#stripes-wide); }
.narrow rect.unreported, .narrow rect.unaccounted { fill: url(#stripes-narrow); }
.legend rect.unreported, .legend rect.unaccounted { fill: none; stroke: var(--soft); stroke-dasharray: 2 2; }
.stripe { fill: var(--soft); }
.pause { opacity: 0.4; }
.notice { fill: var(--mark); stroke: var(--back); stroke-width: 1; }
.saved { fill: var(--save); stroke: var(--back); stroke-width: 1; }
.curve { fill: none; stroke: var(--train); stroke-width: 1.5; stroke-linejoin: round; }
.curve.lost { stroke: var(--mark); }
.area { fill: var(--train); opacity: 0.18; }
.area.lost { fill: var(--mark); opacity: 0.35; }
.key { display: inline-block; width: 14px; height: 12px; margin-right: 8px; vertical-align: -1px; border-radius: 2px; }
.key svg { display: block; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 10px 0 0; padding: 0; list-style: none; }
.legend { font-size: 13px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { text-align: right; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
td { white-space: nowrap; }
td:first-child, th:first-child, .left { text-align: left; }
td.left { white-space: normal; overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; }
li { margin: 2px 0; overflow-wrap: anywhere; }
.events, .events ol { padding: 0; list-style: none; font-size: 14px; font-variant-numeric: tabular-nums; }
.events summary { cursor: pointer; }
.events ol { margin: 4px 0 4px 14px; }
.events li { padding: 2px 8px; border-left: 3px solid var(--line); margin: 0; scroll-margin-top: 40vh; }
.events time { color: var(--soft); margin-right: 10px; }
.events .notice-event, .events .failed, .events .killed, .events .silent { border-color: var(--mark); }
.events .save { border-color: var(--save); }
.events .train, .events .finished { border-color: var(--train); }
.events :target, tr:target td { background: var(--band); font-weight: 600; }
@media (max-width: 600px) {
  body { padding: 14px; }
  .figures { display: grid; grid-template-columns: 1fr 1fr; gap: 8px; }
  .figures div { min-width: 0; padding: 8px 12px; }
  .figures div:last-child:nth-child(odd) { grid-column: 1 / -1; }
  .figures b { font-size: 19px; }
  .timeline.narrow { display: block; }
  .timeline.wide { display: none; }
  table, tbody { display: block; }
  thead { display: none; }
  tr { display: flex; flex-wrap: wrap; gap: 2px 18px; padding: 8px 0; border-bottom: 1px solid var(--line); }
  tr:last-child { border-bottom: 0; }
  td, td:first-child { display: block; border: 0; padding: 0; text-align: left; }
  td::before { content: attr(data-title); display: block; font-size: 12px; color: var(--soft); }
  td[data-key="what"]::before { content: none; }
  td[data-key="meaning"] { color: var(--soft); font-size: 13px; }
  td[data-key="meaning"]::before { content: none; }
  td[data-key="what"] { flex-basis: 100%; font-weight: 600; }
  td.left { flex-basis: 100%; }
  td[data-key="end"] { order: -1; }
  td:empty { display: none; }
}
"""
