"""Notes below or above a generated table: each reason stands once, and a cell has its number."""

from __future__ import annotations


class Notes:
    """The notes of one page or table, numbered in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, note: str) -> int:
        """Returns the number of a note, which is a sentence or more."""
        return self._numbers.setdefault(note, len(self._numbers) + 1)

    def cell(self, word: str, reason: str | None) -> str:
        """Returns a cell: a word, with the number of its reason, half a sentence, if there is one."""
        if reason is None:
            return word
        return f"{word} ({self.number(f'{reason[0].upper()}{reason[1:]}.')})"

    def __str__(self) -> str:
        """Returns them as a list in Markdown."""
        return "\n".join(f"{number}. {note}" for note, number in self._numbers.items())
