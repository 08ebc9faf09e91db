"""The timeline of a run in SVG: a row of spans for each worker, and below them how fast training went.

It is drawn twice, for a wide page and for a phone; `style.STYLE` shows one of them. What comes from events is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from keras_preempt.report import journal
from keras_preempt.report.account import Account, Incarnation, Worker
from keras_preempt.report.course import Stretch, split
from keras_preempt.report.life import HOLD, REPLAY, RESTORE, SAVE, Span
from keras_preempt.report.tables import clock, ended, length, speed, steps

MOST_ROWS = 64
"""Workers that get a row; more could not be distinguished."""


@dataclass(frozen=True)
class Shape:
    """Sizes in units of the picture, which a wide page shows as about as many pixels.

    Attributes:
        name: The class of the picture.
        width: Its width.
        left: The room for the names of the workers and of the speeds.
        row: From one worker to the next.
        bar: The height of a worker's spans.
        speeds: The height of the speeds.
        letter: The width of a letter, where it is largest.
        most_ticks: Times on the axis.
    """

    name: str
    width: float
    left: float
    row: float
    bar: float
    speeds: float
    letter: float
    most_ticks: int

    right: float = 14.0


WIDE = Shape("wide", 1000.0, 54.0, 30.0, 18.0, 96.0, 9.0, 8)
NARROW = Shape("narrow", 360.0, 34.0, 36.0, 24.0, 96.0, 7.2, 4)

_TOP = 34.0
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
    """Draws the timeline.

    Args:
        account: What is drawn.
        shape: Its sizes.
        anchors: The events that the page has, as `journal.Entry` names them: what is drawn leads to them.
    """
    scale = _Scale(account.began, account.ended, shape)
    workers = account.workers[:MOST_ROWS]
    rows = {worker.member: _TOP + index * shape.row for index, worker in enumerate(workers)}
    bottom = _TOP + len(workers) * shape.row
    link = _Links(anchors)
    curve = _speeds(account, scale, bottom + _BETWEEN, link)
    height = bottom + (_BETWEEN + shape.speeds if curve else 0.0)
    label = f"What {len(workers)} workers did from {clock(account.began, account.began)} UTC"
    stripes = f"stripes-{shape.name}"
    parts = [
        f'<svg class="timeline {shape.name}" viewBox="0 0 {shape.width:.0f} {height + 26:.0f}" role="img" '
        f'aria-label="{label}">',
        f'<defs><pattern id="{stripes}" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect class="stripe" width="2" height="6"/></pattern></defs>',
        *_axis(scale, height),
        *(part for start in account.incarnations for part in _start(start, scale, link)),
        *(part for worker in workers for part in _row(worker, rows[worker.member], scale, account.began)),
        *curve,
        *_marks(account, rows, scale, link),
        "</svg>",
    ]
    return "\n".join(parts)


class _Links:
    """Makes something that is drawn lead to an event of the page, if the page has it."""

    def __init__(self, anchors: Collection[str]) -> None:
        self._anchors = anchors

    def __call__(self, key: str, drawn: str) -> str:
        return f'<a href="#{escape(key)}">{drawn}</a>' if key in self._anchors else drawn


class _Scale:
    """Turns times into x coordinates."""

    def __init__(self, began: float, ended: float, shape: Shape) -> None:
        self.began = began
        self.seconds = max(ended - began, 1e-3)
        self.shape = shape

    def at(self, moment: float) -> float:
        part = (moment - self.began) / self.seconds
        shape = self.shape
        return shape.left + min(max(part, 0.0), 1.0) * (shape.width - shape.left - shape.right)

    @property
    def ticks(self) -> list[float]:
        most = self.shape.most_ticks
        step = next((tick for tick in _TICKS if self.seconds / tick <= most), _WIDEST_STEP)
        return [number * step for number in range(min(int(self.seconds / step), 10 * most) + 1)]


def _axis(scale: _Scale, bottom: float) -> Iterator[str]:
    shape = scale.shape
    for tick in scale.ticks:
        x, text = scale.at(scale.began + tick), _elapsed(tick)
        half = len(text) * shape.letter / 2
        anchor = "start" if x - half < shape.left else "end" if x + half > shape.width else "middle"
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6:.0f}" y2="{bottom:.0f}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 17:.0f}" text-anchor="{anchor}">{text}</text>'


def _elapsed(seconds: float) -> str:
    if seconds == 0:
        return "0"
    if seconds < 60:
        return f"{seconds:g} s"
    if seconds < 3600:
        return f"{seconds / 60:g} min"
    return f"{seconds / 3600:g} h" if seconds < 2 * 86400 else f"{seconds / 86400:g} d"


def _start(start: Incarnation, scale: _Scale, link: _Links) -> Iterator[str]:
    left, right = scale.at(start.began), scale.at(start.ended)
    if right - left < _NARROWEST:
        return
    title = escape(f"start {start.number}: steps {steps(start)}, {ended(start)}")
    drawn = f'<title>{title}</title><path class="start" d="M{left + 1:.1f} 22V18H{right - 1:.1f}V22"/>'
    for text in (
        f"start {start.number}: steps {steps(start)}",
        f"start {start.number}: {steps(start)}",
        steps(start),
        str(start.number),
    ):
        if right - left > scale.shape.letter * len(text) + 4:
            drawn += (
                f'<text class="tick" x="{(left + right) / 2:.1f}" y="13" text-anchor="middle">{text}</text>'
            )
            break
    yield link(journal.start_key(start), f"<g>{drawn}</g>")


def _row(worker: Worker, top: float, scale: _Scale, since: float) -> Iterator[str]:
    shape = scale.shape
    middle = top + shape.bar / 2 + 4
    yield (
        f'<text class="worker" x="{shape.left - 8:.0f}" y="{middle:.0f}" text-anchor="end">w{worker.member}</text>'
    )
    for span in _visible(worker.spans, scale):
        left, right = scale.at(span.began), scale.at(span.ended)
        title = f"w{worker.member}: {span.what}, {length(span.seconds)}, from {clock(span.began, since)}"
        yield (
            f'<rect class="{span.what}" x="{left:.2f}" y="{top:.0f}" width="{right - left:.2f}" '
            f'height="{shape.bar:.0f}"><title>{title}</title></rect>'
        )


def _visible(spans: Iterable[Span], scale: _Scale) -> Iterator[Span]:
    for span in spans:
        if scale.at(span.ended) - scale.at(span.began) >= _NARROWEST:
            yield span


def _marks(account: Account, rows: dict[int, float], scale: _Scale, link: _Links) -> Iterator[str]:
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
        mark = f'<path class="notice" d="M{x:.1f} {top + 3:.1f}l-4.5 -8h9z"><title>{title}</title></path>'
        yield link(journal.notice_key(notice), mark)
    under = max(rows.values()) + scale.shape.bar + 5
    for save in account.saves:
        x = scale.at(save.at)
        if ("saved", 0, round(x)) in drawn:
            continue
        drawn.add(("saved", 0, round(x)))
        title = f"step {save.step} saved, {clock(save.at, account.began)}, took {length(save.seconds)}"
        mark = f'<circle class="saved" cx="{x:.1f}" cy="{under:.1f}" r="3"><title>{title}</title></circle>'
        yield link(journal.save_key(save.incarnation, save.step), mark)


# -- How fast training went ----------------------------------------------------------------------------


def _speeds(account: Account, scale: _Scale, top: float, link: _Links) -> list[str]:
    """Draws steps a second over time; nothing if it is not known."""
    courses = [(start, _joined(start.course, scale)) for start in account.incarnations]
    highest = max((stretch.speed for _, course in courses for stretch in course), default=0.0)
    if not highest:
        return []
    shape = scale.shape
    bottom = top + shape.speeds
    step = _round_step(highest / 2.5)
    most = step * (int(highest / step) + 1)

    def y(value: float) -> float:
        return bottom - value / most * (shape.speeds - _TITLE)

    parts = [f'<g class="speeds"><text class="tick" x="0" y="{top:.0f}">steps a second</text>']
    for number in range(int(most / step) + 1):
        at, end = y(number * step), shape.width - shape.right
        parts += [
            f'<line class="grid" x1="{shape.left:.0f}" x2="{end:.0f}" y1="{at:.1f}" y2="{at:.1f}"/>',
            f'<text class="tick" x="{shape.left - 8:.0f}" y="{at + 4:.1f}" text-anchor="end">{number * step:g}</text>',
        ]
    for start, course in courses:
        parts += _pauses(start, scale, top + _TITLE, bottom)
        parts += _curve(start, course, scale, y, bottom, link)
    return [*parts, "</g>"]


def _round_step(least: float) -> float:
    """Returns the next higher of 1, 2, 5, 10 and so on."""
    power = 10.0 ** int(f"{least:e}".partition("e")[2])
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def _joined(course: Sequence[Stretch], scale: _Scale) -> list[Stretch]:
    """Joins stretches too short to be seen, so that a long run stays a small picture."""
    width = scale.seconds / _MOST_SPEEDS
    found: list[Stretch] = []
    for stretch in course:
        if found and (stretch.ended - stretch.began < width or found[-1].ended - found[-1].began < width):
            before = found.pop()
            stretch = Stretch(before.began, stretch.ended, before.first, stretch.last)
        found.append(stretch)
    return found


def _pauses(start: Incarnation, scale: _Scale, top: float, bottom: float) -> Iterator[str]:
    """Shows in which time the workers waited, saved, restored and replayed."""
    for span in start.told.spans:
        if span.what in (HOLD, SAVE, RESTORE, REPLAY):
            left = scale.at(span.began)
            width = max(scale.at(span.ended) - left, _EVENT if span.what in (HOLD, REPLAY) else 0.0)
            if width >= _NARROWEST:
                title = f"start {start.number}: {span.what}, {length(span.seconds)}"
                yield (
                    f'<rect class="{span.what} pause" x="{left:.2f}" y="{top:.1f}" width="{width:.2f}" '
                    f'height="{bottom - top:.1f}"><title>{title}</title></rect>'
                )


def _curve(
    start: Incarnation,
    course: Sequence[Stretch],
    scale: _Scale,
    y: Callable[[float], float],
    bottom: float,
    link: _Links,
) -> Iterator[str]:
    for was_lost, part in _by_loss(course, start.kept_until):
        points = "".join(
            f"{'L' if index else 'M'}{scale.at(stretch.began):.1f} {y(stretch.speed):.1f}H{scale.at(stretch.ended):.1f}"
            for index, stretch in enumerate(part)
        )
        first, last = part[0], part[-1]
        over = Stretch(first.began, last.ended, first.first, last.last)
        kind = "lost" if was_lost else "kept"
        title = escape(
            f"start {start.number}, steps {over.first}-{over.last}: {speed(over.speed)} steps a second"
            + (", lost: they had to be run again" if was_lost else "")
        )
        area = f"{points}V{bottom:.1f}H{scale.at(first.began):.1f}z"
        drawn = (
            f'<g><title>{title}</title><path class="area {kind}" d="{area}"/>'
            f'<path class="curve {kind}" d="{points}"/></g>'
        )
        yield link(journal.end_key(start), drawn) if was_lost else drawn


def _by_loss(course: Sequence[Stretch], kept_until: int | None) -> list[tuple[bool, list[Stretch]]]:
    """Returns a course in parts, each with whether its steps were lost."""
    found: list[tuple[bool, list[Stretch]]] = []
    for stretch in (part for whole in course for part in split(whole, kept_until)):
        was_lost = kept_until is not None and stretch.last > kept_until
        if not found or found[-1][0] is not was_lost:
            found.append((was_lost, []))
        found[-1][1].append(stretch)
    return found
