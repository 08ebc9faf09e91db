"""The timeline as a picture: a row for each worker, what it did by colour, notices and saves as marks. SVG."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from keras_preempt.report.account import Account, Incarnation, Worker
from keras_preempt.report.spans import Span
from keras_preempt.report.wording import clock, length, steps

MOST_ROWS = 64
"""Workers that get a row; more cannot be told apart."""

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
    """Draws the timeline; colours and fonts are those of classes, which the page has."""
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
    """Turns times into places on the picture."""

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
