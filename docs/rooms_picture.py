"""Draws the rooms of the package and the imports between them, docs/images/rooms-*.svg, from the package's own imports.

The order of the rooms is in tests/house.py. Run `python docs/rooms_picture.py` after a change of imports between rooms;
`--check` compares.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from pictures import PALETTES, draw, svg, text

from tests.house import ROOMS, House

WIDTH, ROW, BOX = 420, 46, 28
CENTRE, HALF = 150.0, 62.0

Arrow = tuple[str, str]


def reduced(arrows: set[Arrow]) -> list[Arrow]:
    """Returns the arrows without those that others imply: A to C, where there are A to B and B to C."""
    below: dict[str, set[str]] = {}
    for names in reversed(ROOMS):
        for name in names:
            direct = {target for source, target in arrows if source == name}
            below[name] = direct.union(*(below.get(target, set()) for target in direct))
    return [
        (source, target)
        for source, target in sorted(arrows)
        if not any(target in below.get(other, set()) for here, other in arrows if here == source)
    ]


def picture(arrows: list[Arrow], palette: dict[str, str]) -> str:
    """Returns the rooms from top to bottom, with an arrow for each import."""
    rows = {name: row for row, names in enumerate(ROOMS) for name in names}
    places: dict[str, tuple[float, float]] = {}
    parts = [
        f'<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0L10 5L0 10z" fill="{palette["soft"]}"/></marker></defs>'
    ]
    for names in ROOMS:
        for number, name in enumerate(names):
            x = CENTRE + (number - (len(names) - 1) / 2) * (2 * HALF + 12)
            places[name] = (x, 24 + rows[name] * ROW)
    for source, target in arrows:
        (x, y), (to_x, to_y) = places[source], places[target]
        if rows[target] - rows[source] == 1:
            path = f"M{x:g} {y + BOX / 2:g}L{to_x:g} {to_y - BOX / 2:g}"
        else:
            x, to_x = x + HALF, to_x + HALF
            passed = list(ROOMS)[min(rows[source], rows[target]) + 1 : max(rows[source], rows[target])]
            bend = max(x, to_x) + 14 * len(passed) + 55 * max((len(names) for names in passed), default=1)
            path = f"M{x:g} {y:g}C{bend:g} {y:g} {bend:g} {to_y:g} {to_x:g} {to_y:g}"
        parts.append(
            f'<path d="{path}" fill="none" stroke="{palette["soft"]}" stroke-width="1.3" '
            'marker-end="url(#tip)"/>'
        )
    for name, (x, y) in places.items():
        parts.append(
            f'<rect x="{x - HALF:g}" y="{y - BOX / 2:g}" width="{2 * HALF:g}" height="{BOX}" rx="6" '
            f'fill="{palette["band"]}" stroke="{palette["front"]}" stroke-width="1.3"/>'
        )
        parts.append(text(x, y + 5, name, palette["front"], 14, "middle", 600))
    return svg(WIDTH, 24 + len(ROOMS) * ROW, "The rooms of the package, and which imports which", parts)


def pictures() -> dict[str, str]:
    """Returns the picture by file name, light and dark."""
    arrows = reduced(set(House().arrows()))
    return {f"rooms-{scheme}.svg": picture(arrows, palette) for scheme, palette in PALETTES.items()}


if __name__ == "__main__":
    sys.exit(draw(__file__, pictures()))
