"""Retention: which checkpoints are removed, and in which order their files go."""

from __future__ import annotations

import contextlib
import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras_preempt.checkpoint.errors import NotFound, UnsafeName
from keras_preempt.checkpoint.layout import (
    MANIFEST,
    attempt_directory,
    is_attempt,
    is_attempt_file,
    parse_attempt,
    parse_step,
    step_directory,
)
from keras_preempt.checkpoint.manifest import Manifest
from keras_preempt.checkpoint.reader import CheckpointInfo, committed
from keras_preempt.checkpoint.storage.store import Store

_PART_LIST = ".part.json"  # how their names end
_UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|min|h|d)\Z")


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay: the newest ones, and the first one of each period for ever.

    Example:
        Retention(max_to_keep=3, keep_every="epoch") keeps the three newest checkpoints, and of every epoch the
        one that was committed first. Retention(keep_every=10_000) keeps the first one in each stretch of 10,000
        training steps, Retention(keep_every="1h") the first one in each hour.

    Attributes:
        max_to_keep: How many of the checkpoints that were committed last stay, at least 1.
        keep_every: The length of a period: a number of training steps, counted from step 0; "epoch"; a time such
            as "1h" or a `datetime.timedelta`, counted from 1970 by the clocks of the workers that commit. None:
            nothing is kept for ever.

    Raises:
        ValueError: An attribute is none of these.
    """

    max_to_keep: int = 2
    keep_every: int | str | datetime.timedelta | None = None

    def __post_init__(self) -> None:
        if not _is_count(self.max_to_keep):
            raise ValueError(
                f"Expected max_to_keep to be an integer of at least 1. Received: {self.max_to_keep!r}. Keep at "
                "least the newest checkpoint."
            )
        every = self.keep_every
        by_epoch = isinstance(every, str) and every == "epoch"
        if not (every is None or by_epoch or _is_count(every) or seconds_of(every) is not None):
            raise ValueError(
                "Expected keep_every to be a positive number of steps, 'epoch', a time such as '90s', '10min', "
                f"'1h' or a timedelta, or None. Received: {every!r}. Leave it out to keep only the newest."
            )

    def __str__(self) -> str:
        """Says which checkpoints stay, such as "the newest 2 stay, and the first of every epoch"."""
        stay = "the newest stays" if self.max_to_keep == 1 else f"the newest {self.max_to_keep} stay"
        every = self.keep_every
        if every is None:
            return stay
        period = f"{every:,} steps" if isinstance(every, int) else str(every)
        if isinstance(every, datetime.timedelta):
            period = f"{every.total_seconds():g} s"
        return f"{stay}, and the first of every {period}"

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON data."""
        every = self.keep_every
        return {
            "max_to_keep": self.max_to_keep,
            "keep_every": f"{every.total_seconds():.6f}s" if isinstance(every, datetime.timedelta) else every,
        }

    @classmethod
    def from_json(cls, value: object) -> Retention:
        """Returns what `to_json` was called on; the default for anything else, as from an older release."""
        try:
            return cls(value["max_to_keep"], value["keep_every"])  # type: ignore[index]
        except (TypeError, KeyError, ValueError):
            return cls()

    def period(self, manifest: Manifest) -> int | None:
        """Returns the number of the period that a checkpoint falls in; None if it falls in none."""
        if isinstance(self.keep_every, int):
            return manifest.step // self.keep_every
        if self.keep_every == "epoch":
            epoch = manifest.position.get("epoch")
            return epoch if isinstance(epoch, int) else None
        seconds = seconds_of(self.keep_every)
        if seconds is None or not math.isfinite(manifest.created_at):
            return None
        return math.floor(manifest.created_at / seconds)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def retain(store: Store, retention: Retention, incarnation: int) -> list[str]:
    """Removes what a commit has made superfluous; called after each one.

    Kept are the `max_to_keep` checkpoints that were committed last, by incarnation and round. Not by step:
    after a fall back to an older checkpoint the newest commit has a lower step than the broken one that it
    replaces, and it is the newest commit that must stay. Beside them stays the first one of each period.
    Attempts that were never committed go if they belong to an earlier incarnation. A checkpoint whose manifest
    cannot be read stays, and does not count; so does everything that no save has written. One that lacks a part list
    does not count either.

    Args:
        store: The run's directory.
        retention: What stays.
        incarnation: The caller's own.

    Returns:
        Names of the attempts' folders that were removed.

    Raises:
        StoreUnavailable: The storage failed; what is left is a valid directory.
    """
    removed = removable(store, retention, incarnation)
    for directory in removed:
        remove(store, directory)
    return removed


def removable(store: Store, retention: Retention, incarnation: int) -> list[str]:
    """Returns what `retain` would remove, and removes nothing; arguments and errors as there."""
    superseded = [info.directory for info in _superseded(store, retention)]
    # An attempt may have been committed since the listing, but by no incarnation that is over.
    return superseded + _abandoned(store, incarnation)


def _superseded(store: Store, retention: Retention) -> list[CheckpointInfo]:
    newest_first = [info for info in committed(store) if info.error is None]
    if len(newest_first) <= retention.max_to_keep:
        return []
    newest_first.sort(key=lambda info: (*parse_attempt(info.attempt), info.step), reverse=True)
    first_of = _first_of_each_period(store, newest_first[::-1], retention)
    superseded = []
    newer = 0
    for info in newest_first:
        if newer >= retention.max_to_keep:
            if info.directory not in first_of:
                superseded.append(info)
        elif _has_its_parts(store, info):
            newer += 1
    return superseded


def _first_of_each_period(
    store: Store, oldest_first: Sequence[CheckpointInfo], retention: Retention
) -> set[str]:
    first: dict[int, str] = {}
    for info in oldest_first:
        assert info.manifest is not None
        period = retention.period(info.manifest)
        if period is not None and period not in first and _has_its_parts(store, info):
            first[period] = info.directory
    return set(first.values())


def _has_its_parts(store: Store, info: CheckpointInfo) -> bool:
    """Whether a checkpoint counts: one whose removal was cut short, or that lost a part list, does not."""
    assert info.manifest is not None
    found = {file.name: file.size for file in store.list(info.directory)}
    return all(found.get(f"{info.directory}/{ref.name}") == ref.size for ref in info.manifest.parts)


def _abandoned(store: Store, incarnation: int) -> list[str]:
    found = []
    for folder in store.children(""):
        step = parse_step(folder)
        if step is None:
            continue
        with contextlib.suppress(UnsafeName):  # a link that leads out of the directory: not ours to remove
            found += _abandoned_of(store, step, incarnation)
    return found


def _abandoned_of(store: Store, step: int, incarnation: int) -> list[str]:
    found = []
    for attempt in store.children(step_directory(step)):
        if not is_attempt(attempt) or parse_attempt(attempt)[0] >= incarnation:
            continue
        directory = attempt_directory(step, attempt)
        if MANIFEST not in store.children(directory):
            found.append(directory)
    return found


def remove(store: Store, directory: str) -> None:
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


def seconds_of(value: object) -> float | None:
    """Returns the seconds of a duration such as "90s", "10min", "1.5h", "2d" or a `timedelta`; None if it is none."""
    seconds = 0.0
    if isinstance(value, datetime.timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str) and (found := _TEXT.match(value.strip())):
        seconds = float(found[1]) * _UNITS[found[2]]
    return seconds if 0 < seconds < float("inf") else None
