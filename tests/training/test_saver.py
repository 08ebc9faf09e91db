"""What a save writes and removes; one that fails leaves nothing, and a replaced start writes nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.errors import Fenced, StoreUnavailable
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.layout import attempt_name, incarnation_file
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.writer import WorkerShare
from keras_preempt.report import progress
from keras_preempt.report.events import EventLog
from keras_preempt.training.save.saver import Prepared, Saver
from keras_preempt.training.save.tidier import Tidier
from tests import fits
from tests.checkpoint.builders import new_store, shares_of, values_of
from tests.checkpoint.campaign_store import MemoryStore
from tests.cluster.bucket import URL, bucket_of_this_process
from tests.cluster.small_fit import await_, contents, fit
from tests.training.test_saves import worker_of


def prepared(round: int) -> Prepared:
    tensors = {"kernel": np.full((2, 3), round, np.float32)}
    attempt = Attempt(
        step=round,
        name=attempt_name(1, round),
        position={"batch": round},
        kind="periodic",
        members=1,
        writers=(0,),
        values=values_of(tensors),
    )
    return Prepared(attempt, WorkerShare(shares_of(tensors)[0], {}, {}, attempt.position))


def finished(round: int) -> Prepared:
    """The last save, which superseded checkpoints are removed with: nobody waits for that at any other."""
    save = prepared(round)
    return replace(save, attempt=replace(save.attempt, finished=True))


def saver(store: Store, retention: Retention) -> Saver:
    assert incarnations.claim(store, {}) == 1
    model: Any = None  # only what is prepared here is written
    return Saver(store, model, 1, Tidier(store, retention, 1), EventLog(0))


def test_superseded_checkpoints_are_removed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    saves = saver(store, Retention(1, keep_every=10))
    names = [saves.write(save).name for save in (prepared(0), prepared(1), finished(2))]
    assert [info.directory for info in committed(store)] == [names[2], names[0]]
    assert f"Removed {names[1]}: superseded" in caplog.text


def test_the_last_save_also_removes_them_where_other_workers_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("keras_preempt.training.save.saver.DOOMED_TIMEOUT", 0.1)
    store = MemoryStore()
    saves = saver(store, Retention(1))
    saves.write(prepared(0))
    last = finished(1)
    name = saves.write(replace(last, attempt=replace(last.attempt, members=2, doomed=(1,)))).name
    assert name is not None
    assert [info.directory for info in committed(store)] == [name]


def test_a_start_that_finds_training_over_removes_what_is_left(tmp_path: Path) -> None:
    fit(tmp_path)
    (last,) = committed(LocalStore(tmp_path))
    left = tmp_path / last.directory.replace("00001-", "00001-9")
    left.mkdir()
    (left / "w00000.local.safetensors").write_bytes(b"half")
    fit(tmp_path)
    assert not left.exists()
    assert [info.directory for info in committed(LocalStore(tmp_path))] == [last.directory]


def test_a_save_succeeds_although_older_checkpoints_cannot_be_removed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    saves = saver(store, Retention(1))
    denied = StoreUnavailable("403 no permission to delete")
    monkeypatch.setattr(store, "delete", mock.Mock(side_effect=denied))
    saved = [saves.write(save) for save in (prepared(0), finished(1))]
    assert [info.directory for info in committed(store)] == [saved[1].name, saved[0].name]
    assert "Superseded checkpoints could not be removed: 403 no permission" in caplog.text
    assert "NOT saved" not in caplog.text


def test_a_save_that_training_waits_for_shows_how_far_it_is_and_one_in_the_background_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    saves = saver(new_store(tmp_path), Retention(9))
    assert saves.write(replace(prepared(0), background=True)).name is not None
    assert caplog.messages == []
    name = saves.write(prepared(1)).name
    assert caplog.messages[0].startswith(f"Saving {name}: 0.0 of 0.0 MiB in 0 s")


STEP = 3


def at_step(do: Callable[[], object]) -> fits.Doing:
    """Does something once, before one step of the first epoch."""
    pending = [do]
    return fits.Doing(on_train_batch_begin=lambda batch, logs: batch == STEP and pending and pending.pop()())


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

    ran: list[int] = []
    counts = fits.Doing(on_train_batch_end=lambda batch, logs: ran.append(batch))
    with pytest.raises(Fenced, match="incarnation 2 has claimed it since"):
        fit(directory, epochs=2, save_every=1, more=[at_step(replaced), counts])
    assert len(ran) == 8  # Training goes on to its end, of which the newer start knows nothing.
    assert sum("incarnation 2 has claimed it since" in message for message in caplog.messages) == 1
    after = contents(directory)
    written = {name for name in after if after[name] != before[0].get(name) and not name.startswith("events")}
    # The save that was in flight at that moment, if there was one, is the last that was begun.
    assert {name.split("/")[0] for name in written} <= {f"step-{STEP:08d}"}


def test_a_start_that_withdraws_its_claim_takes_nothing_from_the_one_that_trains(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = LocalStore(tmp_path / "run")

    def come() -> None:
        incarnations.claim(store, {"members": 1})

    def go(batch: int, logs: Any) -> None:
        if batch == STEP and store.children("incarnations")[1:]:
            await_(lambda: "incarnation 2 has claimed it since" in caplog.text)
            store.delete(incarnation_file(2))

    fit(tmp_path / "run", epochs=2, save_every=1, more=[at_step(come), fits.Doing(on_train_batch_end=go)])
    assert committed(store)[0].step == 8


def test_a_directory_that_was_replaced_by_an_empty_one_is_noticed_at_the_next_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory, away = tmp_path / "run", tmp_path / "away"

    def replace_it() -> None:
        # The first save is made in the background: a file can only be looked for.
        await_(lambda: list(directory.glob("step-*/*/MANIFEST.json")))
        directory.rename(away)
        directory.mkdir()

    fit(directory, epochs=2, save_every=2, more=[at_step(replace_it)])
    told = [message for message in caplog.messages if "00001.json, the claim of this start" in message]
    assert told
    assert "Received: none. The directory was removed, emptied or unmounted." in told[0]
    assert contents(directory) == {}
    assert steps(away)  # What was there is where it was put.


@pytest.fixture
def claimed(tmp_path: Path) -> LocalStore:
    """A directory that a start has claimed."""
    store = new_store(tmp_path)
    assert incarnations.claim(store, {}) == 1
    return store


def saver_of(store: Store, member: int, **options: Any) -> Saver:
    """That of one of two workers."""
    model: Any = None
    tidier = Tidier(store, Retention(2), 1)
    return Saver(store, model, 1, tidier, EventLog(member), worker_of(member, 2), **options)


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


def test_a_failed_save_takes_its_files_away_at_once(place: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    place.prepare()
    saves, create = saver(place, Retention(2)), place.create

    def full(name: str, data: bytes) -> Any:
        if name.endswith("MANIFEST.json"):
            raise StoreUnavailable("no space left")
        return create(name, data)

    monkeypatch.setattr(place, "create", full)
    before = {info.name for info in place.list("")}
    assert saves.write(prepared(0)).name is None
    assert {info.name for info in place.list("")} == before
    assert not any(name.startswith("step-") for name in before)
    monkeypatch.setattr(place, "create", create)
    assert saves.write(finished(1)).name is not None


def test_a_worker_whose_save_failed_leaves_the_files_of_others_and_of_a_commit(claimed: LocalStore) -> None:
    # Nobody waits longer than a moment here.
    first, second = (saver_of(claimed, member, patience=lambda: 0.05) for member in range(2))
    attempt = replace(prepared(0).attempt, members=2, writers=(0, 1))
    save = replace(prepared(0), attempt=attempt)
    failed = first.write(save)
    assert (failed.name, failed.late) == (None, (1,))
    assert steps(claimed.path) == set()
    # Worker 1 has nothing to write; worker 0 commits when its part is there, also in the place of worker 1.
    waits = second.write(replace(save, share=replace(save.share, boxes=[])))
    assert (waits.name, waits.late) == (None, (0,))
    alone = replace(save, attempt=replace(attempt, writers=(0,), doomed=(1,)))
    assert first.write(alone).name is not None
    assert len(committed(claimed)) == 1


def test_a_worker_that_comes_too_late_learns_that_others_have_saved_without_it(claimed: LocalStore) -> None:
    """It takes the others for gone, as they take it: all make the save anew, each alone, under one name."""
    first, late = saver_of(claimed, 1), saver_of(claimed, 0)

    def alone(member: int) -> Prepared:
        save = prepared(0)
        gone = frozenset({1 - member})
        attempt = replace(save.attempt, members=2, writers=(member,), doomed=(1 - member,), lost=gone)
        return replace(save, attempt=attempt)

    saved = first.write(alone(1), alone=True)
    assert saved.name is not None
    assert saved.missing == (0,)
    before = contents(claimed.path)
    assert replace(late.write(alone(0), alone=True), seconds=0) == replace(saved, seconds=0)
    assert contents(claimed.path) == before
