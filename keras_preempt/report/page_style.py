"""How the page of a report looks, by day and by night."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --back: #ffffff; --front: #1c2430; --soft: #5b6675; --line: #d9dee5; --band: #f4f6f9; --warn: #8a5a00;
  --train: #1f8a58; --compile: #8c62c4; --start-up: #93a1b1; --restore: #d98e04; --replay: #ecc04a;
  --hold: #cf3f58; --save: #1769c2; --leave: #bfc8d2; --mark: #cf3f58;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #12161c; --front: #e4e9f0; --soft: #9aa7b7; --line: #2f3844; --band: #1a2029; --warn: #e5b45c;
    --train: #3fb37f; --compile: #a888dd; --start-up: #66758a; --restore: #e8a52e; --replay: #d9bd66;
    --hold: #ec6279; --save: #4f9bec; --leave: #465361; --mark: #ff7d92;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 24px; max-width: 1120px; background: var(--back); color: var(--front);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
h1 { font-size: 22px; margin: 0 0 2px; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 30px 0 8px; }
p { margin: 4px 0; }
.soft { color: var(--soft); }
.warn { color: var(--warn); }
.figures { display: flex; flex-wrap: wrap; gap: 12px; margin: 18px 0 8px; }
.figures div { background: var(--band); border-radius: 8px; padding: 10px 16px; min-width: 130px; }
.figures b { display: block; font-size: 22px; line-height: 1.25; font-weight: 600; }
.figures span { color: var(--soft); font-size: 13px; }
.wide { overflow-x: auto; }
.timeline { display: block; width: 100%; min-width: 640px; height: auto; }
.timeline text { font-size: 11px; fill: var(--soft); }
.timeline .worker { fill: var(--front); font-weight: 600; }
.grid { stroke: var(--line); stroke-width: 1; }
.start { fill: none; stroke: var(--soft); stroke-width: 1; }
rect.train { fill: var(--train); } rect.compile { fill: var(--compile); } rect.start-up { fill: var(--start-up); }
rect.restore { fill: var(--restore); } rect.replay { fill: var(--replay); } rect.hold { fill: var(--hold); }
rect.save { fill: var(--save); } rect.leave { fill: var(--leave); }
rect.idle { fill: none; } rect.untold { fill: url(#stripes); } rect.unaccounted { fill: url(#stripes); }
.stripe { fill: var(--soft); }
.notice { fill: var(--mark); stroke: var(--back); stroke-width: 1; }
.saved { fill: var(--save); stroke: var(--back); stroke-width: 1; }
.key { display: inline-block; width: 14px; height: 12px; margin-right: 8px; vertical-align: -1px; border-radius: 2px; }
.key svg { display: block; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 10px 0 0; padding: 0; list-style: none; }
.legend { font-size: 13px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { text-align: right; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
td { white-space: nowrap; }
td:first-child, th:first-child, .left { text-align: left; }
td.left { white-space: normal; overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; }
li { margin: 2px 0; overflow-wrap: anywhere; }
"""
