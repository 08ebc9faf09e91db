"""A report as one page of HTML with a timeline in SVG, which needs no script, no server and no network.

Everything that comes from events is escaped: a directory is data, which anybody may have written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from keras_preempt import __version__
from keras_preempt.report.account import Account, Incarnation, Worker
from keras_preempt.report.life import Span
from keras_preempt.report.tables import (
    Table,
    clock,
    counted,
    headline,
    length,
    losses,
    lost,
    moment,
    notices,
    percent,
    saves,
    starts,
    steps,
    times,
    used,
)


def page(account: Account, directory: str) -> str:
    """Returns the page.

    Args:
        account: The account that it shows.
        directory: The run's directory as the user names it.
    """
    title = escape(directory)
    tables = [starts(account), times(account), notices(account), saves(account)]
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        # If anything slips through, a browser still loads and runs none of it.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{title}: report</title><style>{STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        f'<p>{escape(headline(account))}; <span class="soft">{moment(account.began)} to '
        f"{clock(account.ended, account.began)} UTC</span></p>",
        _figures(account),
        *(f'<p class="warn">{escape(line)}</p>' for line in losses(account)),
        f'<h2>Timeline</h2><div class="wide">{timeline(account)}</div>',
        _legend(account),
        *(_table(table) for table in tables if table is not None),
        _gaps(account),
        f'<p class="soft">Made by keras-preempt {__version__}. Times are UTC; goodput is the part of the wall time '
        "in which steps were trained that did not have to be run again.</p>",
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _figures(account: Account) -> str:
    figures = {
        "goodput": percent(account.goodput),
        "steps lost": lost(account.lost, account.lost_exactly),
        "steps kept": f"{account.steps_run - account.lost:,}",
        "starts": f"{len(account.incarnations):,}",
        "wall time": length(account.ended - account.began),
    }
    shown = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in figures.items())
    return f'<div class="figures">{shown}</div>'


def _legend(account: Account) -> str:
    keys = [
        f'<li><span class="key"><svg width="14" height="12"><rect class="{what}" width="14" height="12" rx="2"/></svg>'
        f"</span>{what}</li>"
        for what in used(account)
        if what != "idle"
    ]
    if account.notices:
        keys.append(_mark('<path class="notice" d="M7 11l-4.5 -8h9z"/>', "a notice"))
    if account.saves:
        keys.append(_mark('<circle class="saved" cx="7" cy="6" r="3"/>', "a checkpoint is committed"))
    more = len(account.workers) - MOST_ROWS
    hidden = f'<p class="soft">{counted(more, "further worker")} not drawn.</p>' if more > 0 else ""
    return f'<ul class="legend">{"".join(keys)}</ul>{hidden}'


def _mark(shape: str, meaning: str) -> str:
    return f'<li><span class="key"><svg width="14" height="12">{shape}</svg></span>{meaning}</li>'


def _table(table: Table) -> str:
    def cell(tag: str, column: str, text: str) -> str:
        left = ' class="left"' if column in table.left else ""
        return f"<{tag}{left}>{escape(text)}</{tag}>"

    head = "".join(cell("th", column, column) for column in table.columns)
    rows = "".join(
        f"<tr>{''.join(cell('td', column, text) for column, text in zip(table.columns, row, strict=True))}</tr>"
        for row in table.rows
    )
    return (
        f'<h2>{escape(table.title)}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _gaps(account: Account) -> str:
    if not account.gaps:
        return ""
    items = "".join(f"<li>{escape(gap)}</li>" for gap in account.gaps)
    return f'<h2>What is missing</h2><ul class="warn">{items}</ul>'


MOST_ROWS = 64
"""Workers that get a row; more could not be distinguished."""

_WIDTH, _LEFT, _RIGHT = 1000.0, 46.0, 14.0
_ROW, _BAR = 30.0, 18.0
_TOP = 34.0
_NARROWEST = 0.5  # of what is drawn; a year of restarts must not make a page of a gigabyte
_MOST_TICKS = 8
_TICKS = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 4 * 3600, 8 * 3600, 12 * 3600),
    *(86400, 2 * 86400, 7 * 86400, 14 * 86400, 30 * 86400, 90 * 86400, 365 * 86400),
)
_WIDEST_STEP = 3650 * 86400.0


def timeline(account: Account) -> str:
    """Draws a row of spans for each worker, with notices and saves as marks; `STYLE` has the colours and fonts."""
    scale = _Scale(account.began, account.ended)
    workers = account.workers[:MOST_ROWS]
    rows = {worker.member: _TOP + index * _ROW for index, worker in enumerate(workers)}
    bottom = _TOP + len(workers) * _ROW
    label = f"What {len(workers)} workers did from {clock(account.began, account.began)} UTC"
    parts = [
        f'<svg class="timeline" viewBox="0 0 {_WIDTH:.0f} {bottom + 26:.0f}" role="img" aria-label="{label}">',
        '<defs><pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect class="stripe" width="2" height="6"/></pattern></defs>',
        *_axis(scale, bottom),
        *(part for start in account.incarnations for part in _start(start, scale)),
        *(part for worker in workers for part in _row(worker, rows[worker.member], scale, account.began)),
        *_marks(account, rows, scale),
        "</svg>",
    ]
    return "\n".join(parts)


class _Scale:
    """Turns times into x coordinates."""

    def __init__(self, began: float, ended: float) -> None:
        self.began = began
        self.seconds = max(ended - began, 1e-3)

    def at(self, moment: float) -> float:
        part = (moment - self.began) / self.seconds
        return _LEFT + min(max(part, 0.0), 1.0) * (_WIDTH - _LEFT - _RIGHT)

    @property
    def ticks(self) -> list[float]:
        step = next((tick for tick in _TICKS if self.seconds / tick <= _MOST_TICKS), _WIDEST_STEP)
        return [number * step for number in range(min(int(self.seconds / step), 10 * _MOST_TICKS) + 1)]


def _axis(scale: _Scale, bottom: float) -> Iterator[str]:
    for tick in scale.ticks:
        x = scale.at(scale.began + tick)
        anchor = "middle" if x > _LEFT + 20 else "start"
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6:.0f}" y2="{bottom:.0f}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 17:.0f}" text-anchor="{anchor}">{_elapsed(tick)}</text>'


def _elapsed(seconds: float) -> str:
    if seconds == 0:
        return "0"
    if seconds < 60:
        return f"{seconds:g} s"
    if seconds < 3600:
        return f"{seconds / 60:g} min"
    return f"{seconds / 3600:g} h" if seconds < 2 * 86400 else f"{seconds / 86400:g} d"


def _start(start: Incarnation, scale: _Scale) -> Iterator[str]:
    left, right = scale.at(start.began), scale.at(start.ended)
    if right - left < _NARROWEST:
        return
    title = escape(f"start {start.number}: steps {steps(start)}, {start.end.value} {start.why}")
    yield f'<g><title>{title}</title><path class="start" d="M{left + 1:.1f} 22V18H{right - 1:.1f}V22"/>'
    for text in (f"start {start.number}: steps {steps(start)}", str(start.number)):
        if right - left > 6.6 * len(text) + 8:
            yield f'<text class="tick" x="{(left + right) / 2:.1f}" y="13" text-anchor="middle">{text}</text>'
            break
    yield "</g>"


def _row(worker: Worker, top: float, scale: _Scale, since: float) -> Iterator[str]:
    yield f'<text class="worker" x="{_LEFT - 8:.0f}" y="{top + 14:.0f}" text-anchor="end">w{worker.member}</text>'
    for span in _visible(worker.spans, scale):
        left, right = scale.at(span.began), scale.at(span.ended)
        title = f"w{worker.member}: {span.what}, {length(span.seconds)}, from {clock(span.began, since)}"
        yield (
            f'<rect class="{span.what}" x="{left:.2f}" y="{top:.0f}" width="{right - left:.2f}" height="{_BAR:.0f}">'
            f"<title>{title}</title></rect>"
        )


def _visible(spans: Iterable[Span], scale: _Scale) -> Iterator[Span]:
    for span in spans:
        if scale.at(span.ended) - scale.at(span.began) >= _NARROWEST:
            yield span


def _marks(account: Account, rows: dict[int, float], scale: _Scale) -> Iterator[str]:
    drawn: set[tuple[str, int, int]] = set()
    for notice in account.notices:
        top, x = rows.get(notice.member), scale.at(notice.at)
        if top is None or ("notice", notice.member, round(x)) in drawn:
            continue
        drawn.add(("notice", notice.member, round(x)))
        what = "withdrawn: " if notice.withdrawn else ""
        title = escape(
            f"w{notice.member}, {clock(notice.at, account.began)}: {what}{notice.reason} ({notice.source})"
        )
        yield (f'<path class="notice" d="M{x:.1f} {top + 3:.1f}l-4.5 -8h9z"><title>{title}</title></path>')
    under = max(rows.values()) + _BAR + 5
    for save in account.saves:
        x = scale.at(save.at)
        if ("saved", 0, round(x)) in drawn:
            continue
        drawn.add(("saved", 0, round(x)))
        title = f"step {save.step} saved, {clock(save.at, account.began)}, took {length(save.seconds)}"
        yield f'<circle class="saved" cx="{x:.1f}" cy="{under:.1f}" r="3"><title>{title}</title></circle>'


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
