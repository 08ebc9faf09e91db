from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.commit import read_manifest, wait_for_commit
from keras_preempt.checkpoint.errors import (
    CommitFailed,
    CorruptCheckpoint,
    NotFound,
    PartsMissing,
    PositionMismatch,
    StoreUnavailable,
)
from keras_preempt.checkpoint.layout import MANIFEST
from keras_preempt.checkpoint.partition import Slice, TensorSpec
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import FileInfo
from keras_preempt.checkpoint.writer import write_part
from tests.checkpoint.builders import at, commit_parts, local, model, snapshot, state, write_parts

DIRECTORY = "step-00000003/00001-0001"


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


def timed(time: FakeTime, **changed: Any) -> dict[str, Any]:
    return {"clock": time.clock, "wait": time.wait, "now": lambda: 1.5, **changed}


def no_manifest(store: LocalStore) -> bool:
    return MANIFEST not in store.children(DIRECTORY)


@pytest.mark.parametrize("position", [at(3), {**at(3), "shape": (1, 2)}])
def test_a_commit_makes_a_manifest_of_all_parts(
    store: LocalStore, time: FakeTime, position: dict[str, Any]
) -> None:
    write_parts(store, DIRECTORY, 3, position=position)
    manifest = commit_parts(store, DIRECTORY, 3, **timed(time, position=position))
    assert manifest == read_manifest(store, DIRECTORY)
    assert [part.member for part in manifest.parts] == [0, 1]
    assert (manifest.members, manifest.missing, manifest.created_at) == (2, (), 1.5)
    assert (manifest.step, manifest.attempt, manifest.incarnation) == (3, "00001-0001", 1)
    assert time.pauses == []


def test_a_commit_waits_for_a_late_part(store: LocalStore, time: FakeTime) -> None:
    write_parts(store, DIRECTORY, 3, members=(0,))
    time.events.append((2.0, lambda: write_parts(store, DIRECTORY, 3, members=(1,))))
    assert commit_parts(store, DIRECTORY, 3, **timed(time)).missing == ()
    assert time.pauses[0] == 0.01
    assert 0.01 < max(time.pauses) <= 0.25, "rarely enough for a bucket, often enough for a grace period"


@pytest.mark.parametrize("doomed", [(), (0, 1)])
def test_a_missing_writer_prevents_the_commit_and_is_named(
    store: LocalStore, time: FakeTime, doomed: tuple[int, ...]
) -> None:
    write_parts(store, DIRECTORY, 3, members=(0,))
    with pytest.raises(CommitFailed, match=r"Received: none of worker 1 in time"):
        commit_parts(store, DIRECTORY, 3, doomed=doomed, **timed(time))
    assert no_manifest(store)
    assert time.now == pytest.approx(5.0)


def test_a_save_fails_because_of_the_worker_that_is_gone_and_not_of_one_that_gave_up_before(
    store: LocalStore, time: FakeTime
) -> None:
    with pytest.raises(PartsMissing) as failed:
        commit_parts(store, DIRECTORY, 3, **timed(time, gone=lambda: {1}))
    assert failed.value.late == (1,)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_part_of_a_doomed_worker_is_waited_for_briefly_and_its_lack_recorded(
    store: LocalStore, time: FakeTime, arrives: bool
) -> None:
    write_parts(store, DIRECTORY, 3, members=(1,), writers=(1,))
    if arrives:
        time.events.append((0.3, lambda: write_parts(store, DIRECTORY, 3, members=(0,), writers=(1,))))
    manifest = commit_parts(
        store, DIRECTORY, 3, writers=(1,), doomed=(0,), **timed(time, optional_timeout=0.5)
    )
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
    store: LocalStore, time: FakeTime, positions: tuple[dict[str, Any], ...], why: str
) -> None:
    for member, position in enumerate(positions):
        write_parts(store, DIRECTORY, 3, members=(member,), position=position)
    with pytest.raises(PositionMismatch, match=why):
        commit_parts(store, DIRECTORY, 3, **timed(time))
    assert no_manifest(store)


@pytest.mark.parametrize("gone", ["w00000.part.json", "w00001.local.safetensors"])
def test_a_manifest_that_comes_after_its_parts_were_cleared_away_is_taken_back(
    store: LocalStore, time: FakeTime, monkeypatch: pytest.MonkeyPatch, gone: str
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
    with pytest.raises(
        CommitFailed, match=rf"Received: {gone} is gone\. Nothing was committed; a newer start"
    ):
        commit_parts(store, DIRECTORY, 3, **timed(time))
    assert no_manifest(store)


def test_a_commit_stands_although_its_parts_cannot_be_looked_at_once_more(
    store: LocalStore, time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parts(store, DIRECTORY, 3)
    list_files = store.list

    def unavailable_once_committed(prefix: str) -> list[FileInfo]:
        if not no_manifest(store):
            raise StoreUnavailable("gone")
        return list_files(prefix)

    monkeypatch.setattr(store, "list", unavailable_once_committed)
    assert commit_parts(store, DIRECTORY, 3, **timed(time)) == read_manifest(store, DIRECTORY)


def test_a_manifest_is_never_overwritten(store: LocalStore, time: FakeTime) -> None:
    incarnations.claim(store, {})
    write_parts(store, DIRECTORY, 3)
    store.create(f"{DIRECTORY}/{MANIFEST}", b"somebody's")
    before = snapshot(store.path)
    with pytest.raises(CorruptCheckpoint):
        commit_parts(store, DIRECTORY, 3, **timed(time))
    assert snapshot(store.path) == before


def test_a_file_that_shrank_prevents_the_commit(store: LocalStore, time: FakeTime) -> None:
    write_parts(store, DIRECTORY, 3)
    with open(store.path / DIRECTORY / "w00001.local.safetensors", "r+b") as file:
        file.truncate(5)
    with pytest.raises(CommitFailed, match=r"w00001\.local\.safetensors .*worker 1 .*Received: 5"):
        commit_parts(store, DIRECTORY, 3, **timed(time))
    (store.path / DIRECTORY / "w00001.local.safetensors").unlink()
    with pytest.raises(CommitFailed, match="no such file"):
        commit_parts(store, DIRECTORY, 3, **timed(time))
    assert no_manifest(store)


def test_a_changed_part_list_prevents_the_commit(store: LocalStore, time: FakeTime) -> None:
    write_parts(store, DIRECTORY, 3)
    path = store.path / DIRECTORY / "w00001.part.json"
    path.write_bytes(path.read_bytes().replace(b'"batch":3', b'"batch":4'))
    with pytest.raises(CorruptCheckpoint, match="w00001"):
        commit_parts(store, DIRECTORY, 3, **timed(time))
    path.write_bytes((store.path / DIRECTORY / "w00000.part.json").read_bytes())
    with pytest.raises(CommitFailed, match="Received: that of worker 0"):
        commit_parts(store, DIRECTORY, 3, **timed(time))
    assert no_manifest(store)


def test_shares_that_do_not_fit_together_are_never_committed(store: LocalStore, time: FakeTime) -> None:
    tensor = np.arange(10.0)
    for member, (start, stop) in enumerate([(0, 6), (5, 10)]):
        share = [(Slice("kernel", "float64", (10,), start, stop), tensor)]
        write_part(store, DIRECTORY, member, share, local(3, member), state(3, member), at(3))
    with pytest.raises(CommitFailed, match="'kernel' has an overlap between elements 5 and 6"):
        commit_parts(store, DIRECTORY, 3, **timed(time))
    assert no_manifest(store)


def test_tensors_from_a_worker_that_is_no_writer_are_never_committed(
    store: LocalStore, time: FakeTime
) -> None:
    write_parts(store, DIRECTORY, 3)
    with pytest.raises(CommitFailed, match=r"writers 0 .*some from worker 1"):
        commit_parts(store, DIRECTORY, 3, **timed(time, writers=(0,)))
    assert no_manifest(store)


def test_a_tensor_that_nobody_wrote_prevents_the_commit(store: LocalStore, time: FakeTime) -> None:
    write_parts(store, DIRECTORY, 3)
    specs = [TensorSpec(name, array.dtype.name, array.shape) for name, array in model(3).items()]
    with pytest.raises(CommitFailed, match="'forgotten' is missing"):
        commit_parts(store, DIRECTORY, 3, **timed(time, specs=[*specs, TensorSpec("forgotten", "int8", ())]))
    with pytest.raises(CommitFailed, match="'seed' is not a tensor"):
        commit_parts(
            store, DIRECTORY, 3, **timed(time, specs=[spec for spec in specs if spec.name != "seed"])
        )
    assert no_manifest(store)
    commit_parts(store, DIRECTORY, 3, **timed(time, specs=specs))


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
    store: LocalStore, time: FakeTime, monkeypatch: pytest.MonkeyPatch, waiting_for: str
) -> None:
    assert store.look_again < GcsStore.look_again
    monkeypatch.setattr(store, "look_again", GcsStore.look_again)
    if waiting_for == "the manifest":
        assert wait_for_commit(store, DIRECTORY, 5.0, clock=time.clock, wait=time.wait) is None
        with pytest.raises(NotFound):
            read_manifest(store, DIRECTORY)
    else:
        with pytest.raises(CommitFailed, match="none of workers 0, 1"):
            commit_parts(store, DIRECTORY, 3, **timed(time, optional_timeout=5.0))
    assert time.pauses == pytest.approx([0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 0.6])
