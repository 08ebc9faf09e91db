"""Writes the picture of the rooms and their arrows in docs/architecture.md, from the package's own imports.

The order of the rooms is in tests/house.py. Run `python docs/architecture_picture.py` after a change of imports
between rooms.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from generated import main

from tests.house import ROOMS, House


def reduced(arrows: set[tuple[str, str]]) -> list[tuple[str, str]]:
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


def picture() -> str:
    """Returns the rooms as a Mermaid diagram, and as a table with all arrows."""
    arrows = set(House().arrows())
    diagram = ["```mermaid", "flowchart TD"]
    order = [name for names in ROOMS for name in names]
    diagram += [f"    {name}" for name in order]
    pairs = sorted(reduced(arrows), key=lambda pair: (order.index(pair[0]), order.index(pair[1])))
    diagram += [f"    {source} --> {target}" for source, target in pairs]
    diagram.append("```")
    table = ["| room | what is in it | imports |", "|---|---|---|"]
    for names, holds in ROOMS.items():
        targets = {target for source, target in arrows if source in names}
        shown = " and ".join(f"`{name}`" for name in names)
        imports = ", ".join(f"`{name}`" for name in order if name in targets) or "-"
        table.append(f"| {shown} | {holds} | {imports} |")
    below = "The diagram leaves out an arrow where a longer way leads to the same room; the table has all of them."
    return "\n\n".join(["\n".join(diagram), below, "\n".join(table)])


if __name__ == "__main__":
    sys.exit(main(__file__, "architecture.md", "the imports of the package", picture))
