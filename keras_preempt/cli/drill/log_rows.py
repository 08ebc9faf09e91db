"""Whether rows of a log file that differ between two runs say something about training. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

__all__ = ["any_rows", "explained_rows"]

Why = Callable[[int, str, bytes, bytes], "str | None"]


def explained_rows(files: Sequence[Mapping[str, str]], left: Mapping[str, bytes]) -> Why:
    """Returns what says why the rows of a `CSVLogger` are expected to differ, or None where they are not.

    Args:
        files: For each worker, the files by the names of their rows in the state.
        left: What the first run has left in each file.
    """
    paths = [path for worker in files for path in worker.values()]

    def why(member: int, name: str, one: bytes, other: bytes) -> str | None:
        path = files[member].get(name) if member < len(files) else None
        if path is None:
            return None
        if paths.count(path) > 1:
            return f"several workers write their rows into {path}, as they come"
        before = left.get(path, b"")
        if before and other.startswith(before) and one.endswith(other[len(before) :]):
            return f"the same rows again, after those that the first run had left in {path}"
        return None

    return why


def any_rows(files: Sequence[Mapping[str, str]]) -> Why:
    """Returns what sets aside all rows: they tell what earlier runs have left, not how this one has trained."""

    def why(member: int, name: str, one: bytes, other: bytes) -> str | None:
        known = member < len(files) and name in files[member]
        return "what earlier runs have left" if known else None

    return why
