"""Hooks of MkDocs: they add the pages and files outside docs/ to which pages link.

The site has the pages of docs/ at its root, and every other file of the repository under its own path.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent

_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
_CODE = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "sh", ".sbatch": "sh", ".json": "json"}


def on_files(files: Files, config: Any) -> Files:
    """Adds the changelog, and a page for every file outside docs/ that a page links to."""
    added: set[str] = set()
    waiting = [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))] + ["CHANGELOG.md"]
    while waiting:
        page = waiting.pop()
        if not page.startswith("docs/"):
            text = (ROOT / page).read_text()
            content = text if page.endswith(".md") else _shown(page, text)
            files.append(File.generated(config, _site_path(page), content=content))
        if not page.endswith(".md"):
            continue
        for target in linked_files(page):
            if not target.startswith("docs/") and target not in added and target != "CHANGELOG.md":
                added.add(target)
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns links between files of the repository into links between their pages on the site."""
    here = _repository_path(page.file.src_uri)

    def led(found: re.Match[str]) -> str:
        target = _target(here, found[1])
        if not (ROOT / target).is_file():
            return found[0]  # MkDocs names it, if it is no page either.
        start = os.path.dirname(page.file.src_uri)
        return f"]({os.path.relpath(_site_path(target), start or '.')}"

    return _LINK.sub(led, markdown)


def linked_files(page: str) -> list[str]:
    """Returns the files that a page links to, as paths in the repository."""
    targets = (_target(page, link) for link in _LINK.findall((ROOT / page).read_text()))
    return [target for target in targets if (ROOT / target).is_file()]


def _target(page: str, link: str) -> str:
    return os.path.normpath(os.path.join(os.path.dirname(page), link))


def _repository_path(site_path: str) -> str:
    return f"docs/{site_path}" if (ROOT / "docs" / site_path).is_file() else site_path


def _site_path(path: str) -> str:
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path.endswith(".md") else f"{path}.md"


def _shown(target: str, text: str) -> str:
    language = _CODE.get(Path(target).suffix, "text")
    return f"# {target}\n\n````{language}\n{text}````\n"
