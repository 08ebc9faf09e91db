from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.commit import Patience, wait_for_commit, wait_for_parts
from keras_preempt.checkpoint.errors import (
    CheckpointError,
    CommitFailed,
    CorruptCheckpoint,
    NotFound,
    PartsMissing,
    PositionMismatch,
    StoreUnavailable,
)
from keras_preempt.checkpoint.layout import MANIFEST
from keras_preempt.checkpoint.manifest import Manifest, read_manifest
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import FileInfo
from keras_preempt.checkpoint.values import Value
from keras_preempt.checkpoint.writer import WorkerShare, write_part
from tests.checkpoint.builders import at, commit_parts, local, model, snapshot, state, values_of, write_parts

DIRECTORY = "step-00000003/00001-0001"
Commit = Callable[..., Manifest]
Refused = Callable[..., None]


class FakeTime:
    """A clock that only waiting moves, and on which things can be made to happen."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.events: list[tuple[float, Any]] = []

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        assert seconds > 0
        self.pauses.append(seconds)
        self.now += seconds
        for at_time, event in list(self.events):
            if self.now >= at_time:
                self.events.remove((at_time, event))
                event()


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def commit(store: LocalStore, time: FakeTime) -> Commit:
    timed = {"clock": time.clock, "wait": time.wait, "now": lambda: 1.5}
    return lambda **changed: commit_parts(store, DIRECTORY, 3, **timed, **changed)


@pytest.fixture
def refused(store: LocalStore, commit: Commit) -> Refused:
    """Expects an error instead of a manifest."""

    def refused(error: type[CheckpointError], why: str, **changed: Any) -> None:
        with pytest.raises(error, match=why):
            commit(**changed)
        assert MANIFEST not in store.children(DIRECTORY)

    return refused


@pytest.mark.parametrize("position", [at(3), {**at(3), "shape": (1, 2)}])
def test_a_commit_makes_a_manifest_of_all_parts(
    store: LocalStore, time: FakeTime, commit: Commit, position: dict[str, Any]
) -> None:
    write_parts(store, DIRECTORY, 3, position=position)
    manifest = commit(position=position)
    assert manifest == read_manifest(store, DIRECTORY)
    assert [part.member for part in manifest.parts] == [0, 1]
    assert (manifest.members, manifest.missing, manifest.created_at) == (2, (), 1.5)
    assert (manifest.step, manifest.attempt, manifest.incarnation) == (3, "00001-0001", 1)
    assert time.pauses == []


def test_a_commit_waits_for_a_late_part(store: LocalStore, time: FakeTime, commit: Commit) -> None:
    write_parts(store, DIRECTORY, 3, members=(0,))
    time.events.append((2.0, lambda: write_parts(store, DIRECTORY, 3, members=(1,))))
    assert commit().missing == ()
    assert time.pauses[0] == 0.01
    assert 0.01 < max(time.pauses) <= 0.25, "rarely enough for a bucket, often enough for a grace period"


@pytest.mark.parametrize("doomed", [(), (0, 1)])
def test_a_missing_writer_prevents_the_commit_and_is_named(
    store: LocalStore, time: FakeTime, refused: Refused, doomed: tuple[int, ...]
) -> None:
    write_parts(store, DIRECTORY, 3, members=(0,))
    refused(CommitFailed, "Received: none of worker 1 in time", doomed=doomed)
    assert time.now == pytest.approx(5.0)


def test_a_save_fails_because_of_the_worker_that_is_gone_and_not_of_one_that_gave_up_before(
    commit: Commit,
) -> None:
    with pytest.raises(PartsMissing) as failed:
        commit(gone=lambda: {1})
    assert failed.value.late == (1,)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_part_of_a_doomed_worker_is_waited_for_briefly_and_its_lack_recorded(
    store: LocalStore, time: FakeTime, commit: Commit, arrives: bool
) -> None:
    write_parts(store, DIRECTORY, 3, members=(1,), writers=(1,))
    if arrives:
        time.events.append((0.3, lambda: write_parts(store, DIRECTORY, 3, members=(0,), writers=(1,))))
    manifest = commit(writers=(1,), doomed=(0,), optional=0.5)
    assert manifest.missing == (() if arrives else (0,))
    assert [part.member for part in manifest.parts] == ([0, 1] if arrives else [1])
    assert arrives or time.now == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("positions", "why"),
    [
        ((at(3), at(3, "validation")), r"worker 0 at .*'train'.*worker 1 at .*'validation'"),
        ((at(4), at(4)), r"committer's position .*'batch': 3.*worker 0 at .*'batch': 4"),
    ],
)
def test_parts_from_another_position_are_never_committed(
    store: LocalStore, refused: Refused, positions: tuple[dict[str, Any], ...], why: str
) -> None:
    for member, position in enumerate(positions):
        write_parts(store, DIRECTORY, 3, members=(member,), position=position)
    refused(PositionMismatch, why)


@pytest.mark.parametrize("gone", ["w00000.part.json", "w00001.local.safetensors"])
def test_a_manifest_that_comes_after_its_parts_were_cleared_away_is_taken_back(
    store: LocalStore, refused: Refused, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """The committer is held up after its look at the fence, for as long as a newer start takes to tidy up."""
    assert incarnations.claim(store, {}) == 1
    write_parts(store, DIRECTORY, 3)
    create = store.create

    def held_up(name: str, data: bytes) -> FileInfo:
        if name.endswith(MANIFEST):
            store.delete(f"{DIRECTORY}/{gone}")
        return create(name, data)

    monkeypatch.setattr(store, "create", held_up)
    refused(CommitFailed, rf"Received: {gone} is gone\. Nothing was committed; a newer start")


def test_a_commit_stands_although_its_parts_cannot_be_looked_at_once_more(
    store: LocalStore, commit: Commit, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parts(store, DIRECTORY, 3)
    list_files = store.list

    def unavailable_once_committed(prefix: str) -> list[FileInfo]:
        if MANIFEST in store.children(DIRECTORY):
            raise StoreUnavailable("gone")
        return list_files(prefix)

    monkeypatch.setattr(store, "list", unavailable_once_committed)
    assert commit() == read_manifest(store, DIRECTORY)


def test_a_manifest_is_never_overwritten(store: LocalStore, commit: Commit) -> None:
    incarnations.claim(store, {})
    write_parts(store, DIRECTORY, 3)
    store.create(f"{DIRECTORY}/{MANIFEST}", b"somebody's")
    before = snapshot(store.path)
    with pytest.raises(CorruptCheckpoint):
        commit()
    assert snapshot(store.path) == before


def test_a_file_that_shrank_or_is_gone_prevents_the_commit(store: LocalStore, refused: Refused) -> None:
    write_parts(store, DIRECTORY, 3)
    path = store.path / DIRECTORY / "w00001.local.safetensors"
    os.truncate(path, 5)
    refused(CommitFailed, r"w00001\.local\.safetensors .*worker 1 .*Received: 5")
    path.unlink()
    refused(CommitFailed, "no such file")


def test_a_changed_part_list_prevents_the_commit(store: LocalStore, refused: Refused) -> None:
    write_parts(store, DIRECTORY, 3)
    path = store.path / DIRECTORY / "w00001.part.json"
    path.write_bytes(path.read_bytes().replace(b'"batch":3', b'"batch":4'))
    refused(CorruptCheckpoint, "w00001")
    path.write_bytes((store.path / DIRECTORY / "w00000.part.json").read_bytes())
    refused(CommitFailed, "Received: that of worker 0")


def test_shares_that_do_not_fit_together_are_never_committed(store: LocalStore, refused: Refused) -> None:
    tensor = np.arange(10.0)
    for member, (start, stop) in enumerate([(0, 6), (5, 10)]):
        share = [(Value("kernel", "float64", (10,)).run(start, stop), tensor[start:stop])]
        write_part(store, DIRECTORY, member, WorkerShare(share, local(3, member), state(3, member), at(3)))
    refused(CommitFailed, r"'kernel' has an overlap at element \[5\]")


def test_tensors_that_no_writer_wrote_or_the_model_does_not_have_and_missing_ones_prevent_the_commit(
    store: LocalStore, refused: Refused, commit: Commit
) -> None:
    write_parts(store, DIRECTORY, 3)
    refused(CommitFailed, r"writers 0 .*some from worker 1", writers=(0,))
    values = values_of(model(3))
    refused(CommitFailed, "'forgotten' is missing", values=[*values, Value("forgotten", "int8", ())])
    refused(CommitFailed, "'seed' is not a tensor", values=[each for each in values if each.name != "seed"])
    commit(values=values)


@pytest.mark.parametrize(
    "changed",
    [{"writers": ()}, {"writers": (2,)}, {"members": 0}, {"doomed": (5,)}, {"name": "1-1"}],
)
def test_a_plan_that_makes_no_sense_is_refused(changed: dict[str, Any]) -> None:
    told: dict[str, Any] = {"members": 2, "writers": (0,), "doomed": (), "name": "00001-0001", **changed}
    with pytest.raises(ValueError, match=r"Expected .* Received: "):
        Attempt(step=3, position=at(3), kind="", **told)


def test_other_workers_see_the_commit(store: LocalStore, time: FakeTime) -> None:
    write_parts(store, DIRECTORY, 3)
    time.events.append((1.0, lambda: commit_parts(store, DIRECTORY, 3)))
    manifest = wait_for_commit(store, DIRECTORY, 9.0, clock=time.clock, wait=time.wait)
    assert manifest == read_manifest(store, DIRECTORY)
    assert time.now < 2


@pytest.mark.parametrize("waiting_for", ["the manifest", "the parts"])
def test_waiting_in_vain_ends_and_looks_at_a_bucket_are_spaced_out_up_to_its_longest_pause(
    store: LocalStore, time: FakeTime, commit: Commit, monkeypatch: pytest.MonkeyPatch, waiting_for: str
) -> None:
    assert store.poll_interval < GcsStore.poll_interval
    monkeypatch.setattr(store, "poll_interval", GcsStore.poll_interval)
    if waiting_for == "the manifest":
        assert wait_for_commit(store, DIRECTORY, 5.0, clock=time.clock, wait=time.wait) is None
        with pytest.raises(NotFound):
            read_manifest(store, DIRECTORY)
    else:
        with pytest.raises(CommitFailed, match="none of workers 0, 1"):
            commit(optional=5.0)
    assert time.pauses == pytest.approx([0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 0.6])


def test_whoever_copies_a_checkpoint_waits_for_the_parts_of_all_in_time(store: LocalStore) -> None:
    time = FakeTime()
    write_parts(store, DIRECTORY, 3, members=(0,))
    with pytest.raises(PartsMissing, match="Check that all workers share the directory") as failed:
        wait_for_parts(store, DIRECTORY, 2, Patience(5.0, clock=time.clock, wait=time.wait))
    assert failed.value.late == (1,)
    assert time.now == pytest.approx(5.0)
    assert len(time.pauses) > 5
    write_parts(store, DIRECTORY, 3, members=(1,))
    sizes = wait_for_parts(store, DIRECTORY, 2, Patience(0.0))
    assert {"w00000.part.json", "w00001.part.json"} <= sizes.keys()
