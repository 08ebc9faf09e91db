"""Writes the list of the rooms in docs/architecture.md, from tests/house.py.

Run `python docs/architecture_table.py` after a change of the rooms.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from generated import main

from tests.house import ROOMS


def rooms() -> str:
    """Returns the picture that docs/rooms_picture.py draws, and a list of the rooms."""
    shown = (
        "![The rooms from top to bottom, with arrows to the rooms that they import](images/rooms-light.svg)"
    )
    below = "The picture leaves out an arrow where a longer way leads to the same room."
    listed = [f"- {' and '.join(f'`{name}`' for name in names)}: {holds}" for names, holds in ROOMS.items()]
    return "\n\n".join([shown, below, "\n".join(listed)])


if __name__ == "__main__":
    sys.exit(main(__file__, "architecture.md", "tests/house.py", rooms))
