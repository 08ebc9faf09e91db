"""Pictures that programs draw: SVG in a light and a dark version, written or, with `--check`, compared."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

IMAGES = Path(__file__).with_name("images")

#: Colours by what they mean, for each version of a picture; close to those of the page that a report writes.
PALETTES: dict[str, dict[str, str]] = {
    "light": {
        **{"back": "#ffffff", "front": "#17233f", "soft": "#55627a", "line": "#cfd6e1", "band": "#f3f5f9"},
        **{"train": "#1f8a58", "start": "#c3ccd8", "save": "#d98a00", "notice": "#c93650", "on": "#ffffff"},
    },
    "dark": {
        **{"back": "#10151f", "front": "#e6ebf4", "soft": "#a3b0c5", "line": "#37435a", "band": "#1a2231"},
        **{"train": "#3fb37f", "start": "#4a586f", "save": "#ffb938", "notice": "#ff7d92", "on": "#08120d"},
    },
}

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def text(
    x: float, y: float, words: str, fill: str, size: float = 14, anchor: str = "start", weight: int = 400
) -> str:
    """Returns a line of text. `y` is its baseline, `anchor` is "start", "middle" or "end"."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" font-size="{size:g}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )


def svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """Returns a whole picture, `width` by `height` pixels."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
            f'viewBox="0 0 {width:g} {height:g}" role="img" font-family="{FONT}">',
            f"<title>{escape(title)}</title>",
            *parts,
            "</svg>\n",
        ]
    )


def draw(script: str, pictures: Mapping[str, str], arguments: Sequence[str] | None = None) -> int:
    """Writes pictures to docs/images, or compares them.

    Args:
        script: The program, as its `__file__`.
        pictures: The pictures by file name.
        arguments: The command line; by default that of the process.

    Returns:
        The exit status: 1 if `--check` found another picture, or none.
    """
    parser = argparse.ArgumentParser(description=f"Draws {', '.join(pictures)} in docs/images.")
    parser.add_argument("--check", action="store_true", help="only compare; exit with 1 if one differs")
    check = parser.parse_args(arguments).check
    stale = [name for name, content in pictures.items() if _present(IMAGES / name) != content]
    if not check:
        for name in stale:
            (IMAGES / name).write_text(pictures[name], encoding="utf-8")
    elif stale:
        names = ", ".join(f"docs/images/{name}" for name in stale)
        print(f"{names}: stale: run python docs/{Path(script).name}", file=sys.stderr)
        return 1
    return 0


def _present(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
