"""Hooks of MkDocs: they add the pages and files outside docs/ to which pages link.

The site has the pages of docs/ at its root, and every other file of the repository under its own path. The page of a
file that is not Markdown shows the file itself, that of a notebook its cells with what they printed, and the page of a
folder's README also shows the folder's other files.
"""

from __future__ import annotations

import json
import os.path
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent

_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
_CODE = {
    **{".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "sh", ".sbatch": "sh", ".json": "json"},
    **{"Dockerfile": "docker", ".service": "ini"},
}


def on_config(config: Any) -> Any:
    """Puts the licence and the repository into the footer, once mkdocs.yml has the repository's address."""
    repository = address(config, "")
    shown = f' · <a href="{repository}">Repository</a>' if repository else ""
    config.copyright = f"Apache License 2.0{shown}"
    return config


def address(config: Any, path: str) -> str | None:
    """Returns the address of a file in the repository, or None while mkdocs.yml has no address for it."""
    repository = str(config.extra["repository"]).rstrip("/")
    if not repository:
        return None
    return f"{repository}/blob/main/{path}" if path else repository


def on_files(files: Files, config: Any) -> Files:
    """Adds the changelog, and a page for every file outside docs/ that a page links to."""
    added: set[str] = set()
    waiting = [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))] + ["CHANGELOG.md"]
    while waiting:
        page = waiting.pop()
        if not page.startswith("docs/"):
            files.append(File.generated(config, _site_path(page), content=_content(page, config)))
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


def _content(path: str, config: Any) -> str:
    """Returns the page of a file outside docs/."""
    if not path.endswith(".md"):
        link = address(config, path)
        note = f" [In the repository]({link})." if link else ""
        shown = _notebook(path) if path.endswith(".ipynb") else _code(path)
        title = re.sub(r"([/_])", r"\1<wbr>", path)  # Where it may be broken.
        return f"# {title}\n\nOne of the [examples]({_to_examples(path)}).{note}\n\n{shown}"
    content = (ROOT / path).read_text()
    if os.path.basename(path) == "README.md":
        others = sorted((ROOT / path).parent.iterdir())
        names = [
            str(each.relative_to(ROOT)) for each in others if each.is_file() and each.name != "README.md"
        ]
        content += "".join(f"\n## {os.path.basename(name)}\n\n{_code(name)}" for name in names)
    return content


def _to_examples(path: str) -> str:
    return os.path.relpath("docs/examples.md", os.path.dirname(path))


def _code(path: str) -> str:
    language = _CODE.get(Path(path).suffix or Path(path).name, "text")
    return f"````{language}\n{(ROOT / path).read_text()}````\n"


def _notebook(path: str) -> str:
    """Returns the cells of a notebook in order, each with what it has printed."""
    parts = []
    for cell in json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            # Its title is below that of the page.
            parts.append(re.sub(r"^# ", "## ", source, flags=re.MULTILINE))
            continue
        parts.append(f"````python\n{source}\n````")
        parts += [f"````text\n{''.join(output['text']).rstrip()}\n````" for output in cell["outputs"]]
    return "\n\n".join(parts) + "\n"
