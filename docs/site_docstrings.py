"""Examples in docstrings as code on the API page: in Markdown, lines that begin with `>>>` would be quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

# An "Example:", and the lines below it that are further in.
_EXAMPLE = re.compile(
    r"^(?P<indent> *)Example:\n(?P<code>(?:(?P=indent) +\S.*(?:\n|\Z)|\n(?=(?P=indent) ))+)", re.MULTILINE
)


class ExamplesAsCode(griffe.Extension):
    """Puts a fence around the code of each example."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites the docstring of one class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = with_fences(obj.docstring.value)


def with_fences(docstring: str) -> str:
    """Returns a docstring with a fence around each example that is code."""
    return _EXAMPLE.sub(_fenced, docstring)


def _fenced(found: re.Match[str]) -> str:
    first = found["code"].strip().partition("\n")[0]
    if first.startswith(">>> "):
        language = "pycon"
    elif first.startswith("with ") and first.endswith(":"):
        language = "python"
    else:
        return found[0]
    margin = " " * (len(found["code"]) - len(found["code"].lstrip()))
    return f"{found['indent']}Example:\n{margin}```{language}\n{found['code'].rstrip()}\n{margin}```\n"
