"""Draws the diagram of docs/alignment.md, docs/images/alignment-*.svg, from `keras_preempt.agreement.alignment`.

The table of transitions says what is drawn, and this file where. Run `python docs/alignment_picture.py` after changing
the table; `--check` compares.
"""

from __future__ import annotations

import sys
from itertools import groupby

from pictures import PALETTES, draw, svg, text

from keras_preempt.agreement.alignment import TRANSITIONS, State, Transition

Point = tuple[float, float]

WIDTH, HEIGHT = 460, 490
HALF_WIDTH, HALF_HEIGHT = 47.0, 18.0

PLACES: dict[State, Point] = {
    State.LISTENING: (224, 66),
    State.ANSWERED: (224, 172),
    State.PLANNED: (224, 278),
    State.ACTING: (224, 384),
    State.LOST: (64, 119),
    State.FINISHED: (396, 119),
    State.LEFT: (396, 384),
}

#: From where to where an arrow goes, by way of which point, and the place of its words.
ARROWS: dict[tuple[State, State], tuple[Point, Point, Point, Point]] = {
    (State.LISTENING, State.ANSWERED): ((236, 84), (236, 120), (236, 154), (242, 124)),
    (State.ANSWERED, State.LISTENING): ((208, 154), (208, 120), (208, 84), (166, 124)),
    (State.ANSWERED, State.PLANNED): ((224, 190), (224, 225), (224, 260), (189, 229)),
    (State.PLANNED, State.ACTING): ((224, 296), (224, 330), (224, 366), (166, 335)),
    (State.ACTING, State.LISTENING): ((264, 366), (348, 225), (264, 84), (264, 218)),
    (State.ACTING, State.FINISHED): ((271, 372), (370, 300), (392, 137), (361, 286)),
    (State.ACTING, State.LEFT): ((271, 388), (310, 388), (349, 388), (294, 406)),
    (State.LISTENING, State.FINISHED): ((271, 60), (370, 64), (392, 101), (322, 60)),
    (State.LISTENING, State.LOST): ((177, 60), (90, 64), (68, 101), (104, 60)),
    (State.ANSWERED, State.LOST): ((177, 178), (90, 174), (68, 137), (104, 190)),
}

#: On which side of a state the arrow to itself is: -1 left, 1 right.
LOOPS = {
    State.PLANNED: -1,
    State.ACTING: -1,
    State.LOST: -1,
    State.FINISHED: 1,
    State.LEFT: 1,
}


def picture(palette: dict[str, str]) -> str:
    """Returns the diagram in the colours of a palette."""
    parts = [
        f'<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{palette["soft"]}"/></marker></defs>'
    ]
    leaving = {row.source for row in TRANSITIONS if row.source is not row.target}
    ends = [(row.source, row.target) for row in TRANSITIONS]
    for (source, target), rows in groupby(sorted(TRANSITIONS, key=lambda row: ends.index(_ends(row))), _ends):
        parts += _arrow(source, target, list(rows), palette)
    start = PLACES[State.LISTENING]
    parts.append(f'<circle cx="{start[0]:g}" cy="14" r="6" fill="{palette["front"]}"/>')
    parts.append(_line(f"M{start[0]:g} 20V{start[1] - HALF_HEIGHT:g}", palette, dashed=False))
    for state in State:
        parts += _box(state, palette, last=state not in leaving)
    y = HEIGHT - 18
    parts.append(_line(f"M20 {y - 5}h34", palette, dashed=True))
    parts.append(text(62, y, "begins the next round", palette["soft"], 13))
    parts.append(
        f'<rect x="222" y="{y - 14}" width="30" height="18" rx="4" fill="none" stroke="{palette["save"]}" '
        f'stroke-width="2.5"/>'
    )
    parts.append(text(260, y, "ends the alignment of a fit", palette["soft"], 13))
    return svg(WIDTH, HEIGHT, "The states of a worker in a round of agreement, and what leads on", parts)


def _ends(row: Transition) -> tuple[State, State]:
    return row.source, row.target


def _arrow(source: State, target: State, rows: list[Transition], palette: dict[str, str]) -> list[str]:
    words = ", ".join(row.event.value for row in rows)
    dashed = any(row.next_round for row in rows)
    if source is target:
        x, y = PLACES[source]
        side = LOOPS[source]
        edge = x + side * HALF_WIDTH
        if side > 0 or x < WIDTH / 3:  # Under the box: beside it there is no room.
            path = f"M{x + side * 8:g} {y + 18:g}C{x + side * 4:g} {y + 50:g} {x + side * 44:g} {y + 50:g} "
            path += f"{x + side * 36:g} {y + 18:g}"
            place, anchor = (x + side * 22, y + 58), "middle"
        else:
            path = f"M{edge:g} {y - 8:g}C{edge - 34:g} {y - 20:g} {edge - 34:g} {y + 20:g} {edge:g} {y + 8:g}"
            place, anchor = (edge - 32, y + 4), "end"
        return [_line(path, palette, dashed=dashed), text(*place, words, palette["front"], 13, anchor)]
    begin, bend, end, place = ARROWS[source, target]
    path = f"M{begin[0]:g} {begin[1]:g}Q{bend[0]:g} {bend[1]:g} {end[0]:g} {end[1]:g}"
    return [_line(path, palette, dashed=dashed), text(*place, words, palette["front"], 13)]


def _line(path: str, palette: dict[str, str], *, dashed: bool) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<path d="{path}" fill="none" stroke="{palette["soft"]}" stroke-width="1.5"{dashes} '
        'marker-end="url(#tip)"/>'
    )


def _box(state: State, palette: dict[str, str], *, last: bool) -> list[str]:
    x, y = PLACES[state]
    colour, thickness = (palette["save"], 2.5) if last else (palette["front"], 1.5)
    return [
        f'<rect x="{x - HALF_WIDTH:g}" y="{y - HALF_HEIGHT:g}" width="{2 * HALF_WIDTH:g}" '
        f'height="{2 * HALF_HEIGHT:g}" rx="7" fill="{palette["band"]}" stroke="{colour}" '
        f'stroke-width="{thickness}"/>',
        text(x, y + 5, state.value, palette["front"], 15, "middle", 600),
    ]


def pictures() -> dict[str, str]:
    """Returns the diagram by file name, light and dark."""
    return {f"alignment-{scheme}.svg": picture(palette) for scheme, palette in PALETTES.items()}


if __name__ == "__main__":
    sys.exit(draw(__file__, pictures()))
