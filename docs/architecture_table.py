"""Writes the table of the rooms and their arrows in docs/architecture.md, from the package's own imports.

The order of the rooms is in tests/house.py. Run `python docs/architecture_table.py` after a change of imports
between rooms.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from generated import main

from tests.house import ROOMS, House


def rooms() -> str:
    """Returns the picture that docs/rooms_picture.py draws, and a table of the rooms with all arrows."""
    arrows = set(House().arrows())
    order = [name for names in ROOMS for name in names]
    table = ["| room | what is in it | imports |", "|---|---|---|"]
    for names, holds in ROOMS.items():
        targets = {target for source, target in arrows if source in names}
        shown = " and ".join(f"`{name}`" for name in names)
        imports = ", ".join(f"`{name}`" for name in order if name in targets) or "-"
        table.append(f"| {shown} | {holds} | {imports} |")
    shown = (
        "![The rooms from top to bottom, with arrows to the rooms that they import](images/rooms-light.svg)"
    )
    below = "The picture leaves out an arrow where a longer way leads to the same room; the table has all of them."
    return "\n\n".join([shown, below, "\n".join(table)])


if __name__ == "__main__":
    sys.exit(main(__file__, "architecture.md", "the imports of the package", rooms))
