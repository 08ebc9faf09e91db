"""Tables of the site that can be read on a phone.

Each cell is given the heading of its column, from which site.css makes cards where the screen is narrow; a table whose
cells are short but for the first column stays a table there. Code in a table is broken between words only: not after a
hyphen or a slash; a name too long for that between its parts. Output in columns, which a program has aligned with
spaces, keeps its lines and scrolls.
"""

from __future__ import annotations

import re
from html import escape
from html.parser import HTMLParser
from typing import Any

_OUTPUT = re.compile(r'<div class="language-text highlight">(?P<inside>.*?</pre>)', re.DOTALL)
_SHORT = 16  # characters of a cell: "not on JAX (12)"
_LONG = 30  # characters of a name
_LONG_ON_A_PHONE = 16  # in the first column of a table of short cells
_WORD = re.compile(r'<span class="word">([^<]*)</span>')
_BREAKS = re.compile(r"[-/.:=,](?=\S)")  # A browser may break a line there.
_WITHIN = re.compile(r"(?<=[._/=(-])(?=\w)|(?<=[a-z])(?=[A-Z])")

# In a line: two words with several spaces between them, or what a rule or a tree is drawn with.
_ALIGNED = re.compile(r"\S {2,}\S|[─├│└]")


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Rewrites the tables of a page, and marks its output in columns."""
    reader = _Tables()
    reader.feed(_OUTPUT.sub(_marked, html))
    reader.close()
    return "".join(reader.written)


def _marked(found: re.Match[str]) -> str:
    text = re.sub(r"<[^>]*>", "", found["inside"])
    lines = [line for line in text.splitlines() if line.strip()]
    aligned = sum(bool(_ALIGNED.search(line)) for line in lines)
    return (
        found[0].replace("language-text", "language-text columns", 1)
        if 2 * aligned > len(lines)
        else found[0]
    )


class _Tables(HTMLParser):
    """Writes all that it reads again, with more in its tables.

    Attributes:
        written: The page, in pieces.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.written: list[str] = []
        self._headings: list[str] | None = None  # None outside of tables.
        self._column = 0
        self._in_heading = False
        self._table = 0  # Where the tag of the table is in `written`.
        self._cell = 0  # Characters of this cell so far.
        self._longest = 0  # Of the cells of this table that are not in its first column.
        self._code: list[str] | None = None  # What stands in the code of a cell so far; None outside of it.

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Writes a tag, with what is added to it."""
        whole = self.get_starttag_text() or ""
        if tag == "table" and ("class", "highlighttable") not in attrs:
            self._headings = []
            self._table, self._longest = len(self.written), 0
        if self._headings is None:
            self.written.append(whole)
            return
        if tag == "tr":
            self._column = 0
        elif tag == "th":
            self._headings.append("")
            self._in_heading = True
        elif tag == "td":
            self._cell = 0
            if self._column < len(self._headings):
                label = escape(self._headings[self._column].strip())
                whole = f'<td data-label="{label}"{whole[3:]}'
            self._column += 1
        self._end_code()
        self.written.append(whole)
        if tag == "code":
            self._code = []

    def handle_endtag(self, tag: str) -> None:
        """Writes the end of a tag."""
        self._end_code()
        if tag == "th":
            self._in_heading = False
        elif tag == "td" and self._column > 1:
            self._longest = max(self._longest, self._cell)
        elif tag == "table" and self._headings is not None:
            if len(self._headings) > 2 and self._longest <= _SHORT:
                first, *rest = self.written[self._table :]
                rest = [_WORD.sub(lambda word: _whole(word[1], _LONG_ON_A_PHONE), piece) for piece in rest]
                self.written[self._table :] = [first.replace("<table", "<table data-short", 1), *rest]
            self._headings = None
        self.written.append(f"</{tag}>")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Writes a tag without content."""
        self._write(self.get_starttag_text() or "")

    def handle_data(self, data: str) -> None:
        """Writes text."""
        if self._in_heading and self._headings is not None:
            self._headings[-1] += data
        self._cell += len(data)
        self._write(data)

    def handle_entityref(self, name: str) -> None:
        """Writes a character by its name."""
        self._write(f"&{name};")

    def handle_charref(self, name: str) -> None:
        """Writes a character by its number."""
        self._write(f"&#{name};")

    def handle_comment(self, data: str) -> None:
        """Writes a comment."""
        self._write(f"<!--{data}-->")

    def _write(self, piece: str) -> None:
        (self.written if self._code is None else self._code).append(piece)

    def _end_code(self) -> None:
        if self._code is None:
            return
        words = "".join(self._code)
        self._code = None
        self.written.append(re.sub(r"\S+", lambda word: _whole(word[0], _LONG), words))


def _whole(word: str, longest: int) -> str:
    """Returns a word that is not broken; one that is too long for that may be between its parts."""
    if len(word) > longest:
        return _WITHIN.sub("<wbr>", word)
    if len(word) <= _LONG_ON_A_PHONE and not _BREAKS.search(word):
        return word
    return f'<span class="word">{word}</span>'
