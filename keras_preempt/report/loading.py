"""Reads the events of a run, makes its account, and says what is missing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CheckpointError, CorruptCheckpoint
from keras_preempt.checkpoint.layout import parse_step
from keras_preempt.checkpoint.run_directory import manifests_in, read_run
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process import this_process
from keras_preempt.process.words import counted
from keras_preempt.report import events
from keras_preempt.report.account import Account
from keras_preempt.report.accounting import account
from keras_preempt.report.tables import some

_MOST_STARTS_NAMED = 5


class NothingTold(CheckpointError):
    """The run has no events, so that there is nothing to report."""


def load(store: Store, *, over: bool = False) -> Account:
    """Accounts for the run in a directory. Nothing is written, and the run may be going on.

    Args:
        store: The directory.
        over: Whether it is known that nothing of the run is going on any more.

    Raises:
        ForeignDirectory: It is not the directory of a run; the message says what it is instead.
        UnsupportedFormat: The run was begun in a newer format.
        NothingTold: It has no events.
        StoreUnavailable: The storage failed, or gives no permission.
    """
    return Looks(store, over=over).look()


class Looks:
    """Looks at a run again and again. What cannot have changed is not read again.

    In a bucket a look costs one request while nothing happens, and a few when something has.

    Args:
        store: The directory. It need not be there yet.
        over: See `load`.
    """

    def __init__(self, store: Store, *, over: bool = False) -> None:
        self._store = store
        self._over = over
        self._begun = False
        self._damage: list[str] = []
        self._kept: dict[str, bytes] = {}
        self._told = -1
        self._silent: list[str] = []
        self._untold: list[dict[str, Any]] = []

    def look(self) -> Account:
        """Accounts for the run as it is now. Arguments and errors are those of `load`."""
        store = self._store
        if not self._begun:
            self._damage = []
            try:
                read_run(store)
            except CorruptCheckpoint as error:  # The report does not need it.
                self._damage.append(f"{error.file} is damaged ({error.why}); it is not needed here")
        gaps = [*self._damage]
        told = events.read(store, gaps.append, self._kept)
        if len(told) != self._told:
            self._untold = _untold(store, told)
            self._silent, self._told = _silent(store, told), len(told)
            if steps := {event["step"] for event in self._untold}:
                self._silent.append(
                    f"the commits of {counted(len(steps), 'checkpoint')}, the first of step {min(steps):,}: told by "
                    "the checkpoints themselves"
                )
        told = sorted([*told, *self._untold], key=lambda event: event["time"])
        gaps += self._silent
        found = account(told, gaps, None if self._over else time.time(), this_process.is_alive)
        if found is None:
            also = f" What is there cannot be read: {'; '.join(gaps)}." if gaps else ""
            raise NothingTold(
                f"Expected events of a run in {store.url}. Received: none.{also} A fit tells its first when its "
                "workers have begun together; custom loops tell none."
            )
        self._begun = True
        return found


def _untold(store: Store, told: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the events that committed checkpoints stand for, where no worker has told that they were committed."""
    steps = {event.get("step") for event in told if event["event"] == "commit"}
    untold = [folder for folder in store.children("") if parse_step(folder) not in steps]
    return [
        {
            "event": kind,
            "time": manifest.created_at,
            "member": part.member,
            "incarnation": manifest.incarnation,
            "step": manifest.step,
            "attempt": manifest.attempt,
            "missing": list(manifest.missing),
        }
        for _, manifest in manifests_in(store, untold)
        for kind in (("commit", "finish") if manifest.finished else ("commit",))
        for part in manifest.parts
    ]


def _silent(store: Store, told: list[dict[str, object]]) -> list[str]:
    """Names the starts that were claimed and have no events."""
    heard = {event["incarnation"] for event in told}
    last = incarnations.latest(store)
    if last - len(heard) > 1 << 16:  # A file name with an absurd number.
        return [f"the starts are numbered up to {last}, and only {len(heard)} have told anything"]
    silent = [number for number in range(1, last + 1) if number not in heard]
    if not silent:
        return []
    return [f"start {some(list(map(str, silent)), _MOST_STARTS_NAMED)}: no events"]
