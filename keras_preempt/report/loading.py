"""Reads the events of a run, makes its account, and says what is missing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import CheckpointError, CorruptCheckpoint
from keras_preempt.checkpoint.finding import manifests_in
from keras_preempt.checkpoint.layout import parse_step
from keras_preempt.checkpoint.run_directory import read_run
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process import this_process
from keras_preempt.process.words import counted, some
from keras_preempt.report import events
from keras_preempt.report.account import Account, account
from keras_preempt.report.event import whole

_MOST_STARTS_NAMED = 5
_MOST_SILENT = 1 << 16


class NoEvents(CheckpointError):
    pass


class Loader:
    """Accounts for a run again and again. Nothing is written, and what cannot have changed is not read again.

    In a bucket that costs one request while nothing happens, and a few when something has. The directory need not be
    there yet. `over`: nothing of the run is still running.
    """

    def __init__(self, store: Store, *, over: bool = False) -> None:
        self._store = store
        self._over = over
        self._begun = False
        self._damage: list[str] = []
        self._kept: dict[str, bytes] = {}
        self._known = -1  # How many events the following two were derived from.
        self._more_gaps: list[str] = []
        self._from_manifests: list[dict[str, Any]] = []

    def load(self) -> Account:
        """Accounts for the run as it is now; raises ForeignDirectory, UnsupportedFormat, NoEvents, StoreUnavailable."""
        store = self._store
        if not self._begun:
            self._damage = []
            try:
                read_run(store)
            except CorruptCheckpoint as error:  # The report does not need it.
                self._damage.append(f"{error.file} is damaged ({error.why}); it is not needed here")
        gaps = [*self._damage]
        records = events.read(store, gaps.append, self._kept)
        if len(records) != self._known:
            self._from_manifests = _unreported_commits(store, records)
            starts, last = {record["incarnation"] for record in records}, incarnations.latest(store)
            if last - len(starts) > _MOST_SILENT:  # A file name with an absurd number.
                numbered = f"the starts are numbered up to {last}, and only {len(starts)} have events"
                self._more_gaps = [numbered]
            else:
                silent = [str(number) for number in range(1, last + 1) if number not in starts]
                self._more_gaps = [f"start {some(silent, _MOST_STARTS_NAMED)}: no events"] if silent else []
            self._known = len(records)
            if steps := {record["step"] for record in self._from_manifests}:
                self._more_gaps.append(
                    f"the commits of {counted(len(steps), 'checkpoint')}, the first of step {min(steps):,}: known only "
                    "from the checkpoints themselves"
                )
        records = sorted([*records, *self._from_manifests], key=lambda record: record["time"])
        gaps += self._more_gaps
        found = account(records, gaps, None if self._over else time.time(), this_process.is_alive)
        if found is None:
            also = f" What is there cannot be read: {'; '.join(gaps)}." if gaps else ""
            raise NoEvents(
                f"Expected events of a run in {store.url}. Received: none.{also} A fit writes its first when its "
                "workers have begun together; custom loops write none."
            )
        self._begun = True
        return found


def _unreported_commits(store: Store, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the events that committed checkpoints stand for, where no worker has reported the commit."""
    steps = {whole(record, "step") for record in records if record["event"] == "commit"}
    folders = [folder for folder in store.children("") if parse_step(folder) not in steps]
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
        for _, manifest in manifests_in(store, folders)
        for kind in (("commit", "finish") if manifest.finished else ("commit",))
        for part in manifest.parts
    ]
