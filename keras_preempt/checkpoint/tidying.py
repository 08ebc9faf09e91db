"""Tidying: which checkpoints and half-written attempts are removed, and in which order their files go."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import NotFound, UnsafeName
from keras_preempt.checkpoint.finding import find
from keras_preempt.checkpoint.layout import (
    INCARNATIONS,
    MANIFEST,
    MODELS,
    incarnation_file,
    is_attempt,
    is_attempt_file,
    parse_attempt,
    parse_step,
)
from keras_preempt.checkpoint.manifest import Manifest
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.store import Store

_PART_LIST = ".part.json"  # how their names end

_SEEN_AGAIN = 2
"""How many of the newest checkpoints must be seen to be whole each time before another one goes."""


@dataclass(eq=False)
class _Attempt:
    """An attempt that was seen, and what is remembered of it."""

    directory: str
    step: int
    order: tuple[int, int]  # incarnation and round
    committed: bool  # It has a manifest.
    readable: bool = True  # As far as that was tried.
    whole: bool = False  # It was seen to have its part lists.
    period: int | None = None  # As far as it is known.
    was_read: bool = False


class Tidying:
    """Removes superseded checkpoints from a directory; remembers what it has seen there.

    Thousands of checkpoints may stay, and each look at one takes requests. So it looks only into folders that are new,
    or that a save of this start has changed.

    Kept are the `max_to_keep` checkpoints that were committed last, by incarnation and round. Not by step:
    after a fall back to an older checkpoint the newest commit has a lower step than the broken one that it
    replaces, and it is the newest commit that must stay. Beside them stays the first one of each period.
    Attempts that were never committed go if they belong to an earlier incarnation. A checkpoint whose manifest
    cannot be read stays, and does not count; so does everything that no save has written. One that lacks a part list
    does not count either.

    `check` is called before each look and each removal; what it raises ends the tidying. All methods may raise
    `StoreUnavailable`. A valid directory is left in any case.

    Attributes:
        restored: The checkpoint that this start continues from; it stays until this start has committed one.
    """

    def __init__(
        self, store: Store, retention: Retention, incarnation: int, check: Callable[[], None] = lambda: None
    ) -> None:
        self._store = store
        self._retention = retention
        self._incarnation = incarnation
        self._check = check
        self._folders: dict[str, list[_Attempt]] = {}
        self._changed: set[str] = set()
        self.restored = ""

    def changed(self, directory: str) -> None:
        """A save is made in this folder: it is looked into again. May be called by any thread."""
        self._changed.add(directory.partition("/")[0])

    def tidy(self) -> Iterator[str]:
        """Removes what is superseded; yields the name of each attempt's folder when it is gone."""
        for directory in self.removable():
            self._check()
            if incarnations.latest(self._store) > self._incarnation:
                return  # The newer start decides what is superseded.
            self.changed(directory)
            remove_attempt(self._store, directory)
            yield directory

    def sweep(self) -> None:
        """Removes half-written files of earlier starts from the folders of what stays."""

        def folders() -> Iterator[str]:  # A bucket, which has no such files, does not ask for them.
            for folder in ("", INCARNATIONS, MODELS, *(seen.directory for seen in self._look())):
                self._check()
                yield folder

        self._store.sweep(folders(), incarnation_file(self._incarnation))

    def removable(self) -> list[str]:
        """Returns the folders that `tidy` would remove, and removes nothing."""
        attempts = self._look()
        # One of these may have been committed since the look, but by no incarnation that is over.
        abandoned = [seen for seen in attempts if not seen.committed and seen.order[0] < self._incarnation]
        superseded = self._superseded([seen for seen in attempts if seen.committed])
        return [seen.directory for seen in (*superseded, *abandoned)]

    def _look(self) -> list[_Attempt]:
        while self._changed:
            self._folders.pop(self._changed.pop(), None)
        names = self._store.children("")
        there = {folder: step for folder in names if (step := parse_step(folder)) is not None}
        for folder in self._folders.keys() - there.keys():
            del self._folders[folder]
        for folder, step in there.items():
            if folder not in self._folders:
                self._check()
                with contextlib.suppress(UnsafeName):  # A link that leads out of the directory is not ours.
                    self._folders[folder] = [
                        _Attempt(path, step, parse_attempt(name), MANIFEST in self._store.children(path))
                        for name in self._store.children(folder)
                        if is_attempt(name) and (path := f"{folder}/{name}")
                    ]
        for folder in there:
            found = self._folders.get(folder)
            if not found or not all(seen.committed for seen in found):  # A save may be under way there.
                self.changed(folder)
        return [seen for folder in there for seen in self._folders.get(folder, ())]

    def _superseded(self, attempts: Sequence[_Attempt]) -> list[_Attempt]:
        newest_first = [seen for seen in attempts if seen.readable]
        if len(newest_first) <= self._retention.max_to_keep:
            return []
        newest_first.sort(key=lambda seen: (seen.order, seen.step), reverse=True)
        beyond: list[_Attempt] = []
        newer = 0
        for seen in newest_first:
            if newer >= self._retention.max_to_keep:
                beyond.append(seen)
            elif self._is_whole(seen, again=newer < _SEEN_AGAIN):
                newer += 1
        periods = self._periods(newest_first[::-1]) if beyond else {}
        if newest_first[0].order[0] < self._incarnation:  # This start has committed nothing yet.
            beyond = [seen for seen in beyond if seen.directory != self.restored]
        return [seen for seen in beyond if not self._is_first(seen, periods) and self._read(seen) is not None]

    def _periods(self, oldest_first: Sequence[_Attempt]) -> Mapping[int, list[_Attempt]]:
        """Returns the checkpoints that fall in each period."""
        periods: dict[int, list[_Attempt]] = defaultdict(list)
        every = self._retention.keep_every
        for seen in oldest_first if every is not None else ():
            if isinstance(every, int):
                seen.period = seen.step // every
            elif not seen.was_read:
                self._read(seen)
            if seen.period is not None:
                periods[seen.period].append(seen)
        return periods

    def _is_first(self, seen: _Attempt, periods: Mapping[int, list[_Attempt]]) -> bool:
        """Whether a checkpoint is the first of its period that counts, or the only one."""
        period = [] if seen.period is None else periods[seen.period]
        if len(period) < 2:
            return bool(period)
        first = next((other for other in period if self._is_whole(other)), None)
        if first is not None and first is not seen:
            self._is_whole(first, again=True)
            first = next((other for other in period if self._is_whole(other)), None)
        return first is seen

    def _is_whole(self, seen: _Attempt, *, again: bool = False) -> bool:
        """Whether a checkpoint counts: one whose removal was cut short, or that lost a part list, does not."""
        if again or not seen.whole:
            manifest = self._read(seen)
            seen.whole = manifest is not None and self._has_its_parts(seen.directory, manifest)
        return seen.whole

    def _has_its_parts(self, directory: str, manifest: Manifest) -> bool:
        found = {file.name: file.size for file in self._store.list(directory)}
        return all(found.get(f"{directory}/{ref.name}") == ref.size for ref in manifest.parts)

    def _read(self, seen: _Attempt) -> Manifest | None:
        """Reads the manifest of a checkpoint; None if that cannot be read, or is gone."""
        self._check()
        info = find(self._store, seen.directory)
        if info is None:
            self.changed(seen.directory)
        manifest = None if info is None else info.manifest
        seen.was_read, seen.readable = True, manifest is not None
        seen.period = None if manifest is None else self._retention.period(manifest)
        return manifest


def remove_attempt(store: Store, directory: str) -> None:
    """Removes an attempt, such as one that `removable` returns; what is gone already is no error.

    Its manifest goes first, so that what is left after a crash in between is no checkpoint; then a part list, so that
    one look shows that it is not whole, should it be committed meanwhile.
    """
    _remove_if_there(store, f"{directory}/{MANIFEST}")
    names = [info.name for info in store.list(directory)]
    ours = [name for name in names if is_attempt_file(name[len(directory) + 1 :])]
    for name in [name for name in ours if name.endswith(_PART_LIST)][:1]:
        _remove_if_there(store, name)
    if len(ours) == len(names):
        store.delete_tree(directory)
    else:
        for name in ours:
            _remove_if_there(store, name)
    # A committer of an earlier incarnation that was held up may have come in between. If it comes later than this,
    # it finds its parts gone, and takes the manifest back itself.
    if MANIFEST in store.children(directory):
        _remove_if_there(store, f"{directory}/{MANIFEST}")


def _remove_if_there(store: Store, name: str) -> None:
    with contextlib.suppress(NotFound):
        store.delete(name)
