"""Pictures of the site in the scheme and the width of the reader.

A page shows `images/NAME-light.svg` (or `.png`). Where `images/NAME-dark.svg` exists, the site shows that one in its
dark scheme; where `images/NAME-narrow-light.svg` exists, a phone gets that one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).with_name("images")

_LIGHT = re.compile(
    r'<img (?P<before>[^>]*)src="(?P<path>[^"]*/)?(?P<name>[\w-]+)-light\.(?P<kind>svg|png)"(?P<after>[^>]*)>'
)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Replaces each light picture by those for every scheme and width."""
    return _LIGHT.sub(_pictures, html)


def _pictures(found: re.Match[str]) -> str:
    name, kind, path = found["name"], found["kind"], found["path"] or ""
    if not (IMAGES / f"{name}-dark.{kind}").is_file():
        return found[0]
    shown = []
    for scheme in ("light", "dark"):
        # The theme hides what ends in #only-light in its dark scheme, and the other way round.
        source = f"{path}{name}-{scheme}.{kind}#only-{scheme}"
        image = f'<img {found["before"]}src="{source}"{found["after"]}>'
        narrow = f"{name}-narrow-{scheme}.{kind}"
        if (IMAGES / narrow).is_file():
            phone = f'<source media="(max-width: 600px)" srcset="{path}{narrow}">'
            image = f"<picture>{phone}{image}</picture>"
        shown.append(image)
    return "".join(shown)
