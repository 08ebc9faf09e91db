"""The description of the package on PyPI, made of README.md when the package is built.

On GitHub the links of README.md lead to the files beside it. PyPI has no files, so that there they have to lead to the
repository, at the tag of the version. The repository's address is in mkdocs.yml; while that is empty, the description
has no links to files and no picture.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?!\w+:|#)(?P<path>[^)\s]+)\)")
_PICTURE = re.compile(r"<picture>.*?</picture>\n*", re.DOTALL)
_FILE = re.compile(r'(?P<attribute>src|srcset)="(?!\w+:)(?P<path>[^"]+)"')


class Description(MetadataHookInterface):
    """Sets `readme` and `urls` of the project."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds them to what pyproject.toml says."""
        root = Path(self.root)
        repository = address((root / "mkdocs.yml").read_text(encoding="utf-8"))
        text = (root / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": description(text, repository, tag(metadata["version"])),
        }
        metadata["urls"] = {"Repository": repository} if repository else {}


def address(settings: str) -> str | None:
    """Returns the address of the repository out of the text of mkdocs.yml, or None while it is empty.

    Raises:
        ValueError: It has no line for it.
    """
    found = re.search(r'^ +repository: "?([^"\s]*)"?$', settings, re.MULTILINE)
    if found is None:
        raise ValueError(
            "Expected a line 'repository: https://...' in mkdocs.yml. Received: none. Add it below 'extra:'."
        )
    return found[1].rstrip("/") or None


def tag(version: str) -> str:
    """Returns what the repository has for a version: the tag of a release, the main branch between two."""
    return "main" if ".dev" in version else f"v{version}"


def description(readme: str, repository: str | None, tag: str) -> str:
    """Returns README.md with links that lead somewhere from PyPI.

    Args:
        readme: Its text.
        repository: The address of the repository, without a slash at its end, if it is known.
        tag: The tag or branch of this version in the repository.
    """
    if repository is None:
        return _LINK.sub(r"\g<text>", _PICTURE.sub("", readme))
    links = _LINK.sub(rf"[\g<text>]({repository}/blob/{tag}/\g<path>)", readme)
    return _FILE.sub(rf'\g<attribute>="{repository}/raw/{tag}/\g<path>"', links)
