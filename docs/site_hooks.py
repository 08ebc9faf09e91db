"""What MkDocs is told beside mkdocs.yml: pages and files that stand outside docs/ and that pages link to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent

_OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)")
_CODE = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "sh", ".sbatch": "sh", ".json": "json"}


def on_files(files: Files, config: Any) -> Files:
    """Adds the changelog, and a page for every file outside docs/ that a page links to."""
    files.append(File.generated(config, "CHANGELOG.md", content=(ROOT / "CHANGELOG.md").read_text()))
    wanted = {"CHANGELOG.md"}
    waiting = [path.read_text() for path in (ROOT / "docs").glob("*.md")]
    while waiting:
        for target in _OUTSIDE.findall(waiting.pop()):
            if target in wanted or not (ROOT / target).is_file():
                continue
            wanted.add(target)
            text = (ROOT / target).read_text()
            if target.endswith(".md"):
                waiting.append(text)
                files.append(File.generated(config, target, content=text))
            else:
                files.append(File.generated(config, f"{target}.md", content=_shown(target, text)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Leads links out of docs/ to the pages that `on_files` has made."""
    if page.file.src_uri == "CHANGELOG.md" or "/" in page.file.src_uri:
        return markdown
    return _OUTSIDE.sub(lambda found: f"]({_page_of(found[1])}", markdown)


def _page_of(target: str) -> str:
    return target if target.endswith(".md") else f"{target}.md"


def _shown(target: str, text: str) -> str:
    language = _CODE.get(Path(target).suffix, "text")
    return f"# {target}\n\n````{language}\n{text}````\n"
