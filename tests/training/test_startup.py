"""How the workers of a fit begin together, each in a thread, over one directory."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from keras_preempt.agreement.coordinator import CoordinationLost, Coordinator
from keras_preempt.checkpoint.errors import CheckpointError, StoreUnavailable
from keras_preempt.checkpoint.in_memory import InMemory
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Moved, uncounted
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST, exit_status_of
from keras_preempt.training.save.resuming import Start
from keras_preempt.training.start import handshake, startup
from keras_preempt.training.start.handshake import StartError, WorkerMissing
from keras_preempt.training.start.startup import Startup
from tests.agreement.memory_coordinator import PATIENCE, MemoryService
from tests.checkpoint.builders import held, model, new_store, save, snapshot
from tests.checkpoint.round_table import together

IDENTITY: dict[str, Any] = {
    "format": 1,
    "run_id": "a",
    "model": [{"name": "kernel", "shape": [2], "dtype": "float32"}],
    "optimizer": [],
    "optimizer_class": "Adam",
    "setup": {"workers": 2, "replicas": 2, "global_batch": 8, "batches": 6, "built_from": 1},
    "config": {},
}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "START_TIMEOUT", 2.0)
    monkeypatch.setattr(startup, "SHARED_WAIT", 0.3)


class Described(Startup):
    """A start with an identity that is given, for checkpoints that hold no model."""

    def __init__(
        self, store: LocalStore, coordinator: Coordinator, identity: Callable[[], Mapping[str, Any]]
    ) -> None:
        super().__init__(store, handshake.Handshake(coordinator, 1))
        vars(self)["identity"] = identity


class Failing(LocalStore):
    """A directory in which one worker cannot read what it is told to."""

    def __init__(self, path: Path, breaks: Callable[[str], bool], error: BaseException) -> None:
        super().__init__(path)
        self.breaks = breaks
        self.error = error

    def open(self, name: str, moved: Moved = uncounted) -> Any:
        if self.breaks(name):
            raise self.error
        return super().open(name, moved)

    def children(self, prefix: str) -> Any:
        if self.breaks(f"list {prefix}"):
            raise self.error
        return super().children(prefix)


def begin_all(
    stores: list[LocalStore],
    *,
    identities: dict[int, Callable[[], dict[str, Any]]] | None = None,
    absent: tuple[int, ...] = (),
) -> list[Start | Exception]:
    """Begins a fit of one worker per store but for those that are absent; returns what came of each."""
    coordinators = MemoryService(len(stores)).coordinators()

    def worker(member: int) -> Callable[[], Start]:
        store = stores[member]
        identity = (identities or {}).get(member, lambda: {**IDENTITY, "run_id": uuid.uuid4().hex})
        return Described(store, coordinators[member], identity).agree

    return together([worker(member) for member in range(len(stores)) if member not in absent])


def started(outcomes: list[Start | Exception]) -> list[Start]:
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Start)]


def assert_restored(starts: list[Start], step: int, *, exchanged: bool) -> None:
    for member, start in enumerate(starts):
        assert start.name.startswith(f"step-{step:08d}/")
        assert start.exchanged == exchanged
        assert start.restored is not None
        assert start.restored.state["member"] == member
        for name, array in model(step).items():
            assert start.restored.values.whole[name].tobytes() == array.tobytes()


def of_one(unlucky: int, text: str, kind: type[Exception], outcomes: list[Start | Exception]) -> None:
    """All have failed with that text: one by an error of its own kind, and the others say that it cannot begin."""
    for member, outcome in enumerate(outcomes):
        assert isinstance(outcome, kind if member == unlucky else StartError)
        assert text in str(outcome)
        assert member == unlucky or f"Worker {unlucky} cannot begin" in str(outcome)


def saved_run(path: Path, *steps: int) -> LocalStore:
    """A run's directory with these checkpoints of two workers."""
    store = new_store(path)
    started(begin_all([store, store]))
    for number, step in enumerate(steps):
        save(store, step, round=number)
    return store


def spoil(store: LocalStore, step: int, what: str = "*.safetensors") -> None:
    (file, *_) = sorted((store.path / f"step-{step:08d}").rglob(what))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_a_new_run_begins_without_a_checkpoint_and_each_start_is_the_next_incarnation(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "run")
    for number in (1, 2, 3):
        assert started(begin_all([store] * 3)) == [Start(number, None, "", ())] * 3


def test_all_workers_continue_from_the_newest_checkpoint_each_with_its_own_part(tmp_path: Path) -> None:
    store = saved_run(tmp_path, 3, 8, 5)
    starts = started(begin_all([store] * 2))
    assert_restored(starts, 8, exchanged=False)
    assert [start.skipped for start in starts] == [(), ()]


@pytest.mark.parametrize("spoilt", ["w00000.mirrored*", "MANIFEST.json"])
def test_all_workers_use_the_newest_that_verifies_and_say_which_they_did_not(
    spoilt: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = saved_run(tmp_path, 3, 8)
    spoil(store, 8, spoilt)
    starts = started(begin_all([store] * 2))
    assert [start.name.split("/")[0] for start in starts] == ["step-00000003"] * 2
    assert all("step-00000008" in start.skipped[0] for start in starts)
    assert "step-00000008" in caplog.text


@pytest.mark.parametrize("unlucky", [0, 1])
def test_one_worker_that_cannot_read_makes_all_fall_back_together(tmp_path: Path, unlucky: int) -> None:
    store = saved_run(tmp_path, 3, 8)
    stores: list[LocalStore] = [store, store]
    stores[unlucky] = Failing(
        store.path,
        lambda name: "step-00000008" in name and name.endswith(".safetensors"),
        StoreUnavailable("stale file handle"),
    )
    starts = started(begin_all(stores))
    assert [start.name.split("/")[0] for start in starts] == ["step-00000003"] * 2
    assert all("stale file handle" in start.skipped[0] for start in starts)


def test_nothing_is_trained_and_no_checkpoint_touched_when_none_verifies(tmp_path: Path) -> None:
    store = saved_run(tmp_path, 3, 8)
    spoil(store, 3)
    spoil(store, 8)
    before = snapshot(store.path)
    first, second = begin_all([store] * 2)
    assert isinstance(first, CheckpointError)
    assert isinstance(second, StartError)
    for outcome in (first, second):
        assert "step-00000003" in str(outcome)
        assert "step-00000008" in str(outcome)
        assert "train in another directory" in str(outcome)
    assert snapshot(store.path) == before


@pytest.mark.parametrize("old", [False, True], ids=["two new ones", "an old run of the same numbers"])
def test_a_directory_that_is_not_shared_is_an_error_on_all_workers(old: bool, tmp_path: Path) -> None:
    mine, yours = LocalStore(tmp_path / "mine"), LocalStore(tmp_path / "yours")
    if old:
        started(begin_all([yours]))
    for outcome in begin_all([mine, yours]):
        assert isinstance(outcome, (CheckpointError, StartError))
        assert "all workers share" in str(outcome)
    assert yours.path.exists() == old
    assert snapshot(mine.path) == {}  # So that the same command works in another directory, and here too.


def test_a_worker_that_runs_another_program_is_an_error_on_all_workers(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "run")
    outcomes = begin_all([store] * 3, identities={2: lambda: {**IDENTITY, "optimizer_class": "SGD"}})
    for outcome in outcomes:
        assert isinstance(outcome, StartError)
        assert "worker 2" in str(outcome)
        assert "same program" in str(outcome)


def test_a_directory_of_another_model_is_refused_on_all_workers_and_left_alone(tmp_path: Path) -> None:
    store = saved_run(tmp_path, 3)
    before = snapshot(store.path)
    other = {**IDENTITY, "model": [{"name": "kernel", "shape": [9], "dtype": "float32"}]}
    outcomes = begin_all([store] * 2, identities={0: lambda: other, 1: lambda: other})
    for outcome in outcomes:
        assert isinstance(outcome, (CheckpointError, StartError))
        assert "kernel" in str(outcome)
    assert snapshot(store.path) == before


@pytest.mark.parametrize("unlucky", [0, 1, 2])
def test_a_model_that_one_worker_cannot_build_or_a_directory_that_it_cannot_write_is_an_error_on_all(
    tmp_path: Path, unlucky: int
) -> None:
    broken = mock.Mock(side_effect=ValueError("no such layer"))
    outcomes = begin_all([LocalStore(tmp_path / "run")] * 3, identities={unlucky: broken})
    of_one(unlucky, "no such layer", ValueError, outcomes)
    assert [exit_status_of(outcome) for outcome in outcomes] == [None] * 3

    stores = [LocalStore(tmp_path / "run") for _ in range(3)]
    vars(stores[unlucky])["prepare"] = mock.Mock(side_effect=StoreUnavailable("403 no permission to create"))
    of_one(unlucky, "403 no permission to create", StoreUnavailable, begin_all(stores))
    assert not (tmp_path / "run").exists() or snapshot(tmp_path / "run") == {}


@pytest.mark.parametrize("absent", [0, 1])
def test_a_worker_that_never_begins_its_fit_is_named_by_the_others(tmp_path: Path, absent: int) -> None:
    for outcome in begin_all([LocalStore(tmp_path / "run")] * 3, absent=(absent,)):
        assert isinstance(outcome, WorkerMissing)
        assert exit_status_of(outcome) == EXIT_WORKER_LOST  # Also of one who has only heard of it.
        assert f"worker {absent} to begin" in str(outcome)


@pytest.mark.parametrize(
    ("unlucky", "breaks", "error"),
    [
        *((worker, ".safetensors", MemoryError("no room for the kernel")) for worker in range(3)),
        (0, "list ", StoreUnavailable("stale file handle")),  # After the claim.
        (1, "MANIFEST.json", StoreUnavailable("stale file handle")),
    ],
)
def test_an_unforeseen_error_while_reading_is_told_to_all_at_once(
    unlucky: int, breaks: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "START_TIMEOUT", PATIENCE * 10)  # told, not timed out
    store = saved_run(tmp_path, 3)
    stores = [store] * 3
    stores[unlucky] = Failing(store.path, lambda name: name.endswith(breaks), error)
    outcomes = begin_all(stores)
    assert all(isinstance(outcome, Exception) and str(error) in str(outcome) for outcome in outcomes)


@pytest.mark.parametrize("interrupted", range(3))
def test_ctrl_c_while_one_reads_is_told_to_all_at_once(
    interrupted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "START_TIMEOUT", PATIENCE * 10)  # told, not timed out
    store = saved_run(tmp_path, 3)
    stores = [store] * 3
    stores[interrupted] = Failing(store.path, lambda name: name.endswith(".safetensors"), KeyboardInterrupt())
    outcomes = begin_all(stores)
    assert isinstance(outcomes.pop(interrupted), KeyboardInterrupt)
    for outcome in outcomes:
        assert isinstance(outcome, StartError)
        assert str(outcome) == f"Worker {interrupted} was ended while it began its fit (KeyboardInterrupt)."


def test_ctrl_c_between_two_questions_is_told_to_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "START_TIMEOUT", PATIENCE * 10)  # told, not timed out
    hear_leader = handshake.Handshake.hear_leader

    def interrupted(self: handshake.Handshake, name: str) -> dict[str, Any]:
        heard = hear_leader(self, name)
        if self.coordinator.member == 1 and name == "read/0/verdict":
            raise KeyboardInterrupt
        return heard

    monkeypatch.setattr(handshake.Handshake, "hear_leader", interrupted)
    store = saved_run(tmp_path, 3, 6)
    spoil(store, 6)  # So that there is a second question.
    outcomes = begin_all([store] * 3)
    assert isinstance(outcomes.pop(1), KeyboardInterrupt)
    assert all("Worker 1 was ended while it began its fit" in str(outcome) for outcome in outcomes)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_happens_to_a_worker_that_is_told_of_one_in_memory_is_told_to_all_at_once(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "START_TIMEOUT", PATIENCE * 10)  # told, not timed out
    store = saved_run(tmp_path)
    text = held(members=2, parts={0, 1}).to_json().decode()
    monkeypatch.setattr(Described, "hold", lambda self, run_id: [text])
    monkeypatch.setattr(
        Described, "meet", lambda self, number, info: self.handshake.agree(f"given/{number}", "", int)[1]
    )
    monkeypatch.setattr(InMemory, "from_json", mock.Mock(side_effect=error("cannot be")))
    leader, follower = begin_all([store, store])
    assert isinstance(follower, error)
    assert isinstance(leader, StartError)
    assert "Worker 1 " in str(leader)


def test_a_worker_that_loses_the_one_that_hosts_the_service_has_a_status_of_its_own(tmp_path: Path) -> None:
    service = MemoryService(2)
    service.lose()
    store = LocalStore(tmp_path / "run")
    for coordinator in service.coordinators():
        with pytest.raises(CoordinationLost) as left:
            Described(store, coordinator, lambda: IDENTITY).agree()
        assert exit_status_of(left.value) == EXIT_WORKER_LOST


@pytest.mark.parametrize(
    ("says", "shared"), [(("here", "here", "here"), True), (("here", "here", "there"), False)]
)
def test_workers_learn_whether_all_of_them_say_the_same(says: tuple[str, ...], shared: bool) -> None:
    coordinators = MemoryService(len(says)).coordinators()

    def asks(member: int) -> Callable[[], bool]:
        return lambda: handshake.Handshake(coordinators[member], 1).is_shared("way", says[member])

    assert together([asks(member) for member in range(len(says))]) == [shared] * len(says)


@pytest.mark.parametrize("broken", [0, 1])
def test_an_error_before_the_question_ends_the_start_of_those_who_wait_for_the_answer(broken: int) -> None:
    coordinators = MemoryService(2).coordinators()

    def asks(member: int) -> None:
        own = handshake.Handshake(coordinators[member], 1)
        with own.telling_of("way"):
            if member == broken:
                raise ValueError("no such file")
            own.is_shared("way", "here")

    raised = together([lambda: asks(0), lambda: asks(1)])
    of_one(broken, "no such file", ValueError, raised)
    assert not isinstance(raised[1 - broken], WorkerMissing)
