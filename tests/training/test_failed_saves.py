"""A save that fails leaves nothing behind, and a start that may not save any more writes nothing more."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.reader import committed
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.report.events import EventLog
from keras_preempt.training.saver import Prepared, Saver
from tests.cluster.bucket import URL, bucket_of_this_process
from tests.cluster.small_fit import contents, fit
from tests.training.test_saver import prepared, saver

STEP = 3


class At(keras.callbacks.Callback):
    """Does something before one step of the first epoch."""

    def __init__(self, do: Callable[[], object]) -> None:
        super().__init__()
        self._do = do
        self._done = False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == STEP and not self._done:
            self._done = True
            self._do()

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


def steps(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("step-*")}


def test_a_start_that_was_told_that_it_is_replaced_writes_nothing_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "run"
    before: list[dict[str, bytes | None]] = []

    def replaced() -> None:
        incarnations.claim(LocalStore(directory), {"members": 1})
        before.append(contents(directory))

    with caplog.at_level(logging.INFO, "keras_preempt"):
        ran = fit(directory, epochs=4, save_every=1, more=[At(replaced)])
    assert len(ran) == 16  # Training goes on.
    assert sum("incarnation 2 has claimed it since" in message for message in caplog.messages) == 1
    after = contents(directory)
    written = {name for name in after if after[name] != before[0].get(name) and not name.startswith("events")}
    # The save that was in flight at that moment, if there was one, is the last that was begun.
    assert {name.split("/")[0] for name in written} <= {f"step-{STEP:08d}"}


def test_a_directory_that_was_replaced_by_an_empty_one_is_noticed_at_the_next_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory, away = tmp_path / "run", tmp_path / "away"

    def replace_it() -> None:
        until = time.monotonic() + 60
        while not list(directory.glob("step-*/*/MANIFEST.json")) and time.monotonic() < until:
            time.sleep(0.01)  # The first save is made in the background: a file can only be looked for.
        directory.rename(away)
        directory.mkdir()

    fit(directory, epochs=2, save_every=2, more=[At(replace_it)])
    told = [message for message in caplog.messages if "00001.json, the claim of this start" in message]
    assert told
    assert "Received: none. The directory was removed, emptied or unmounted." in told[0]
    assert contents(directory) == {}
    assert steps(away)  # What was there is where it was put.


@pytest.fixture(params=["directory", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty one."""
    if request.param == "directory":
        yield LocalStore(tmp_path)
        return
    with bucket_of_this_process(tmp_path):
        store = open_store(URL)
        yield store
        store.close()


def test_a_save_that_fails_takes_its_files_away_at_once(
    place: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = place
    store.prepare()
    saves = saver(store, Retention(2))
    create = store.create

    def full(name: str, data: bytes) -> Any:
        if name.endswith("MANIFEST.json"):
            raise StoreUnavailable("no space left")
        return create(name, data)

    monkeypatch.setattr(store, "create", full)
    before = {info.name for info in store.list("")}
    assert saves.write(prepared(0)).name is None
    assert {info.name for info in store.list("")} == before
    assert not any(name.startswith("step-") for name in before)
    monkeypatch.setattr(store, "create", create)
    assert saves.write(prepared(1)).name is not None


def test_a_worker_whose_save_failed_leaves_the_files_of_the_others_and_of_a_commit(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.prepare()
    assert incarnations.claim(store, {}) == 1
    model: Any = None

    def worker(member: int) -> Saver:
        # Nobody waits longer than a moment here.
        return Saver(store, model, member, 2, 1, Retention(2), EventLog(member), patience=lambda: 0.05)

    attempt = replace(prepared(0).attempt, members=2, writers=(0, 1))
    save = replace(prepared(0), attempt=attempt)
    failed = worker(0).write(save)
    assert (failed.name, failed.late) == (None, (1,))
    assert steps(tmp_path) == set()
    # Worker 1 has nothing to write; worker 0 commits when its part is there, also in the place of worker 1.
    waits = worker(1).write(replace(save, mirrored=[]))
    assert (waits.name, waits.late) == (None, (0,))
    assert (
        worker(0).write(replace(save, attempt=replace(attempt, writers=(0,), doomed=(1,)))).name is not None
    )
    assert len(committed(store)) == 1


def test_a_worker_that_comes_too_late_learns_that_the_others_have_saved_without_it(tmp_path: Path) -> None:
    """It takes the others for gone, as they take it: all make the save anew, each alone, under one name."""
    store = LocalStore(tmp_path)
    store.prepare()
    assert incarnations.claim(store, {}) == 1
    model: Any = None
    first, late = (Saver(store, model, member, 2, 1, Retention(2), EventLog(member)) for member in (1, 0))

    def alone(member: int) -> Prepared:
        save = prepared(0)
        gone = frozenset({1 - member})
        attempt = replace(save.attempt, members=2, writers=(member,), doomed=(1 - member,), lost=gone)
        return replace(save, attempt=attempt)

    saved = first.write(alone(1), alone=True)
    assert saved.name is not None
    assert saved.missing == (0,)
    before = contents(tmp_path)
    assert replace(late.write(alone(0), alone=True), seconds=0) == replace(saved, seconds=0)
    assert contents(tmp_path) == before
