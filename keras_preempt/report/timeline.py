"""The timeline of a run in SVG: a row of spans for each worker, and below them how fast training went.

It is drawn twice, for a wide page and for a phone; page.css shows one of them. What comes from events is escaped.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from keras_preempt.report import journal
from keras_preempt.report.account import Account, Worker
from keras_preempt.report.job_start import JobStart
from keras_preempt.report.throughput import Stretch, split, stretches
from keras_preempt.report.wording import clock, ended, length, speed, step_range
from keras_preempt.report.worker_run import HOLD, REPLAY, RESTORE, SAVE

MOST_ROWS = 64
"""Workers that get a row; more could not be distinguished."""


@dataclass(frozen=True)
class Shape:
    """Sizes in units of the picture, which a wide page shows as about as many pixels."""

    name: str  # the class of the picture
    width: float
    left: float  # the room for the names of the workers and of the speeds
    row: float  # from one worker to the next
    bar: float  # the height of a worker's spans
    letter: float  # the width of a letter, where it is largest
    most_ticks: int  # times on the axis


WIDE = Shape("wide", 1000.0, 54.0, 30.0, 18.0, 9.0, 8)
NARROW = Shape("narrow", 360.0, 34.0, 36.0, 24.0, 7.2, 4)

_TOP = 34.0
_RIGHT = 14.0
_SPEEDS = 96.0  # the height of the speeds
_BETWEEN = 28.0  # between the rows and the speeds
_TITLE = 20.0  # for what the speeds are
_NARROWEST = 0.5  # of what is drawn; a year of restarts must not make a page of a gigabyte
_MOST_SPEEDS = 600  # stretches of different speed
_EVENT = 2.0  # the least width of what is to be seen, however short it was
_TICKS = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 4 * 3600, 8 * 3600, 12 * 3600),
    *(86400, 2 * 86400, 7 * 86400, 14 * 86400, 30 * 86400, 90 * 86400, 365 * 86400),
)
_WIDEST_STEP = 3650 * 86400.0


def timeline(account: Account, shape: Shape, anchors: Collection[str] = ()) -> str:
    """Draws the timeline; what is drawn leads to those events that the page has, whose keys are `anchors`."""
    return "\n".join(_Picture(account, shape, anchors).lines())


class _Picture:
    def __init__(self, account: Account, shape: Shape, anchors: Collection[str]) -> None:
        self._account = account
        self._shape = shape
        self._anchors = anchors
        self._began = account.began
        self._seconds = max(account.ended - account.began, 1e-3)

    def lines(self) -> Iterator[str]:
        account, shape = self._account, self._shape
        workers = account.workers[:MOST_ROWS]
        rows = {worker.member: _TOP + index * shape.row for index, worker in enumerate(workers)}
        bottom = _TOP + len(workers) * shape.row
        curve = list(self._speeds(bottom + _BETWEEN))
        height = bottom + (_BETWEEN + _SPEEDS if curve else 0.0)
        label = f"What {len(workers)} workers did from {clock(self._began, self._began)} UTC"
        yield (
            f'<svg class="timeline {shape.name}" viewBox="0 0 {shape.width:.0f} {height + 26:.0f}" role="img" '
            f'aria-label="{label}">'
        )
        yield (
            f'<defs><pattern id="stripes-{shape.name}" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect class="stripe" width="2" height="6"/></pattern></defs>'
        )
        yield from self._axis(height)
        for start in account.starts:
            yield from self._start(start)
        for worker in workers:
            yield from self._row(worker, rows[worker.member])
        yield from curve
        yield from self._marks(rows)
        yield "</svg>"

    def _x(self, moment: float) -> float:
        part = (moment - self._began) / self._seconds
        return self._shape.left + min(max(part, 0.0), 1.0) * (self._shape.width - self._shape.left - _RIGHT)

    def _link(self, key: str, drawn: str) -> str:
        """Makes something that is drawn lead to an event of the page, if the page has it."""
        return f'<a href="#{escape(key)}">{drawn}</a>' if key in self._anchors else drawn

    def _axis(self, bottom: float) -> Iterator[str]:
        shape, seconds = self._shape, self._seconds
        step = next((tick for tick in _TICKS if seconds / tick <= shape.most_ticks), _WIDEST_STEP)
        for number in range(min(int(seconds / step), 10 * shape.most_ticks) + 1):
            after = number * step
            x, text = self._x(self._began + after), f"{after / 86400:g} d"
            if after < 2 * 86400:
                text = f"{after / 3600:g} h"
            if after < 3600:
                text = f"{after / 60:g} min" if after >= 60 else f"{after:g} s" if after else "0"
            half = len(text) * shape.letter / 2
            anchor = "start" if x - half < shape.left else "end" if x + half > shape.width else "middle"
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6:.0f}" y2="{bottom:.0f}"/>'
            yield _text("tick", f"{x:.1f}", bottom + 17, anchor, text)

    def _start(self, start: JobStart) -> Iterator[str]:
        left, right = self._x(start.began), self._x(start.ended)
        if right - left < _NARROWEST:
            return
        long = f"start {start.number}: steps {step_range(start)}"
        drawn = (
            f"<title>{escape(f'{long}, {ended(start)}')}</title>"
            f'<path class="start" d="M{left + 1:.1f} 22V18H{right - 1:.1f}V22"/>'
        )
        for text in (
            long,
            f"start {start.number}: {step_range(start)}",
            step_range(start),
            str(start.number),
        ):
            if right - left > self._shape.letter * len(text) + 4:
                drawn += _text("tick", f"{(left + right) / 2:.1f}", 13, "middle", text)
                break
        yield self._link(journal.start_key(start), f"<g>{drawn}</g>")

    def _row(self, worker: Worker, top: float) -> Iterator[str]:
        shape, name = self._shape, f"w{worker.member}"
        yield _text("worker", f"{shape.left - 8:.0f}", top + shape.bar / 2 + 4, "end", name)
        for span in worker.spans:
            left, right = self._x(span.began), self._x(span.ended)
            if right - left >= _NARROWEST:
                title = f"{name}: {span.what}, {length(span.seconds)}, from {clock(span.began, self._began)}"
                yield (
                    f'<rect class="{span.what}" x="{left:.2f}" y="{top:.0f}" width="{right - left:.2f}" '
                    f'height="{shape.bar:.0f}"><title>{title}</title></rect>'
                )

    def _marks(self, rows: dict[int, float]) -> Iterator[str]:
        """Draws notices and saves; of those that would lie on each other, the first."""
        drawn: set[tuple[int | None, int]] = set()
        for notice in self._account.notices:
            top, x = rows.get(notice.member), self._x(notice.at)
            if top is None or (notice.member, round(x)) in drawn:
                continue
            drawn.add((notice.member, round(x)))
            what = f"{'withdrawn: ' if notice.withdrawn else ''}{notice.reason} ({notice.source})"
            title = escape(f"w{notice.member}, {clock(notice.at, self._began)}: {what}")
            mark = f'<path class="notice" d="M{x:.1f} {top + 3:.1f}l-4.5 -8h9z"><title>{title}</title></path>'
            yield self._link(journal.notice_key(notice), mark)
        under = max(rows.values()) + self._shape.bar + 5
        for save in self._account.saves:
            x = self._x(save.at)
            if (None, round(x)) in drawn:
                continue
            drawn.add((None, round(x)))
            title = f"step {save.step} saved, {clock(save.at, self._began)}, took {length(save.seconds)}"
            mark = (
                f'<circle class="saved" cx="{x:.1f}" cy="{under:.1f}" r="3"><title>{title}</title></circle>'
            )
            yield self._link(journal.save_key(save), mark)

    # -- How fast training went ------------------------------------------------------------------------

    def _speeds(self, top: float) -> Iterator[str]:
        """Draws steps a second over time; nothing if it is not known."""
        shape = self._shape
        throughputs = [(start, self._visible_stretches(start)) for start in self._account.starts]
        highest = max((stretch.speed for _, found in throughputs for stretch in found), default=0.0)
        if not highest:
            return
        power = 10.0 ** int(f"{highest / 2.5:e}".partition("e")[2])
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= highest / 2.5)
        bottom, count = top + _SPEEDS, int(highest / step) + 1
        unit = (_SPEEDS - _TITLE) / (step * count)  # the height of a step a second
        yield f'<g class="speeds"><text class="tick" x="0" y="{top:.0f}">steps a second</text>'
        for number in range(count + 1):
            y = bottom - number * step * unit
            yield (
                f'<line class="grid" x1="{shape.left:.0f}" x2="{shape.width - _RIGHT:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            yield _text("tick", f"{shape.left - 8:.0f}", y + 4, "end", f"{number * step:g}", digits=1)
        for start, parts in throughputs:
            yield from self._pauses(start, top + _TITLE, bottom)
            yield from self._curve(start, parts, unit, bottom)
        yield "</g>"

    def _visible_stretches(self, start: JobStart) -> list[Stretch]:
        """Joins stretches too short to be seen, so that a long run stays a small picture."""
        width = self._seconds / _MOST_SPEEDS
        found: list[Stretch] = []
        for stretch in stretches(start.reference.samples):
            if found and (stretch.ended - stretch.began < width or found[-1].ended - found[-1].began < width):
                before = found.pop()
                stretch = Stretch(before.began, stretch.ended, before.first, stretch.last)
            found.append(stretch)
        return found

    def _pauses(self, start: JobStart, top: float, bottom: float) -> Iterator[str]:
        for span in start.reference.spans:
            left = self._x(span.began)
            width = max(self._x(span.ended) - left, _EVENT if span.what in (HOLD, REPLAY) else 0.0)
            if span.what in (HOLD, SAVE, RESTORE, REPLAY) and width >= _NARROWEST:
                title = f"start {start.number}: {span.what}, {length(span.seconds)}"
                yield (
                    f'<rect class="{span.what} pause" x="{left:.2f}" y="{top:.1f}" width="{width:.2f}" '
                    f'height="{bottom - top:.1f}"><title>{title}</title></rect>'
                )

    def _curve(self, start: JobStart, parts: Sequence[Stretch], unit: float, bottom: float) -> Iterator[str]:
        kept = math.inf if start.kept_until is None else start.kept_until
        pieces = (piece for part in parts for piece in split(part, start.kept_until))
        for was_lost, group in itertools.groupby(pieces, lambda piece: piece.last > kept):
            part = list(group)
            points = "M" + "L".join(
                f"{self._x(each.began):.1f} {bottom - each.speed * unit:.1f}H{self._x(each.ended):.1f}"
                for each in part
            )
            over = Stretch(part[0].began, part[-1].ended, part[0].first, part[-1].last)
            kind, why = ("lost", ", lost: they had to be run again") if was_lost else ("kept", "")
            steps_run = f"start {start.number}, steps {over.first}-{over.last}"
            title = escape(f"{steps_run}: {speed(over.speed)} steps a second{why}")
            area = f"{points}V{bottom:.1f}H{self._x(over.began):.1f}z"
            drawn = (
                f'<g><title>{title}</title><path class="area {kind}" d="{area}"/>'
                f'<path class="curve {kind}" d="{points}"/></g>'
            )
            yield self._link(journal.end_key(start), drawn) if was_lost else drawn


def _text(kind: str, x: str, y: float, anchor: str, text: str, digits: int = 0) -> str:
    return f'<text class="{kind}" x="{x}" y="{y:.{digits}f}" text-anchor="{anchor}">{text}</text>'
