"""How the workers of a fit begin together, each in a thread, over one directory."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.agreement.coordinator import CoordinationLost
from keras_preempt.checkpoint.errors import CheckpointError, StoreUnavailable
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Moved, uncounted
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST, status_of
from keras_preempt.training import handshake, startup
from keras_preempt.training.handshake import StartError, WorkerMissing
from keras_preempt.training.startup import Start
from tests.agreement.memory_coordinator import PATIENCE, MemoryService
from tests.checkpoint.builders import model, new_store, save, snapshot

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


class Failing(LocalStore):
    """A directory in which one worker cannot read what it is told to."""

    def __init__(self, path: Path, breaks: Callable[[str], bool], error: Exception) -> None:
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
    prepare: Callable[[], None] | None = None,
) -> list[Start | Exception]:
    """Begins a fit of one worker per store; returns what came of each, never later than after `PATIENCE`."""
    outcomes: list[Start | Exception] = [RuntimeError("it never came back") for _ in stores]
    service = MemoryService(len(stores))

    def run(member: int) -> None:
        identity = (identities or {}).get(member, lambda: {**IDENTITY, "run_id": uuid.uuid4().hex})
        coordinator = service.coordinators()[member]
        try:
            outcomes[member] = startup.begin(
                coordinator, 1, stores[member], prepare or stores[member].prepare, identity
            )
        except Exception as error:
            outcomes[member] = error

    threads = [threading.Thread(target=run, args=[m]) for m in range(len(stores)) if m not in absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a worker still waits"
    return outcomes


def started(outcomes: list[Start | Exception]) -> list[Start]:
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Start)]


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


def test_workers_of_a_new_run_begin_with_one_incarnation_and_no_checkpoint(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "run")
    first, second, third = started(begin_all([store] * 3))
    assert first == second == third == Start(1, None, "", ())


def test_every_start_gets_the_next_incarnation(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "run")
    numbers = [[start.incarnation for start in started(begin_all([store] * 2))] for _ in range(3)]
    assert numbers == [[1, 1], [2, 2], [3, 3]]


def test_all_workers_continue_from_the_newest_checkpoint_each_with_its_own_part(tmp_path: Path) -> None:
    store = saved_run(tmp_path, 3, 8, 5)
    starts = started(begin_all([store] * 2))
    for member, start in enumerate(starts):
        assert start.name.startswith("step-00000008/")
        assert start.skipped == ()
        assert start.restored is not None
        assert start.restored.state["member"] == member
        assert (start.restored.tensors["dense/kernel"] == model(8)["dense/kernel"]).all()


def test_all_workers_use_the_newest_that_verifies_and_say_which_they_did_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = saved_run(tmp_path, 3, 8)
    spoil(store, 8, "w00000.mirrored*")
    starts = started(begin_all([store] * 2))
    assert [start.name.split("/")[0] for start in starts] == ["step-00000003"] * 2
    assert all("step-00000008" in start.skipped[0] for start in starts)
    assert "step-00000008" in caplog.text


def test_an_edited_manifest_is_not_used(tmp_path: Path) -> None:
    store = saved_run(tmp_path, 3, 8)
    spoil(store, 8, "MANIFEST.json")
    starts = started(begin_all([store] * 2))
    assert [start.name.split("/")[0] for start in starts] == ["step-00000003"] * 2


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


def test_a_directory_that_is_not_shared_is_an_error_on_all_workers(tmp_path: Path) -> None:
    mine, yours = LocalStore(tmp_path / "mine"), LocalStore(tmp_path / "yours")
    first, second = begin_all([mine, yours])
    for outcome in (first, second):
        assert isinstance(outcome, (CheckpointError, StartError))
        assert "all workers share" in str(outcome)
    assert not (tmp_path / "yours").exists()
    assert (
        snapshot(tmp_path / "mine") == {}
    )  # so that the same command works in another directory, and here too


def test_two_old_runs_with_the_same_numbers_are_not_taken_for_one_shared_directory(tmp_path: Path) -> None:
    mine, yours = LocalStore(tmp_path / "mine"), LocalStore(tmp_path / "yours")
    started(begin_all([yours]))
    outcomes = begin_all([mine, yours])
    assert all("all workers share" in str(outcome) for outcome in outcomes)


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
def test_an_error_while_one_worker_builds_its_model_is_an_error_on_all(tmp_path: Path, unlucky: int) -> None:
    def broken() -> dict[str, Any]:
        raise ValueError("no such layer")

    outcomes = begin_all([LocalStore(tmp_path / "run")] * 3, identities={unlucky: broken})
    for member, outcome in enumerate(outcomes):
        assert isinstance(outcome, ValueError if member == unlucky else StartError)
        assert "no such layer" in str(outcome)
        assert status_of(outcome) is None
        assert member == unlucky or f"worker {unlucky} cannot begin" in str(outcome).lower()


def test_a_directory_that_cannot_be_written_is_an_error_on_all(tmp_path: Path) -> None:
    def refuse() -> None:
        raise StoreUnavailable("Read-only file system")

    outcomes = begin_all([LocalStore(tmp_path / "run")] * 2, prepare=refuse)
    assert all("Read-only file system" in str(outcome) for outcome in outcomes)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("unlucky", [0, 1, 2])
def test_one_worker_that_cannot_write_is_an_error_on_all_that_names_it(tmp_path: Path, unlucky: int) -> None:
    class Refusing(LocalStore):
        def prepare(self) -> None:
            raise StoreUnavailable("403 no permission to create")

    stores = [LocalStore(tmp_path / "run") for _ in range(3)]
    stores[unlucky] = Refusing(tmp_path / "run")
    for member, outcome in enumerate(begin_all(stores)):
        assert isinstance(outcome, StoreUnavailable if member == unlucky else StartError)
        assert "403 no permission to create" in str(outcome)
        assert member == unlucky or f"Worker {unlucky} cannot begin" in str(outcome)
    assert not (tmp_path / "run").exists() or snapshot(tmp_path / "run") == {}


@pytest.mark.parametrize("absent", [0, 1])
def test_a_worker_that_never_begins_its_fit_is_named_by_the_others(tmp_path: Path, absent: int) -> None:
    outcomes = begin_all([LocalStore(tmp_path / "run")] * 3, absent=(absent,))
    for member, outcome in enumerate(outcomes):
        if member != absent:
            assert isinstance(outcome, WorkerMissing)
            assert status_of(outcome) == EXIT_WORKER_LOST  # Also of one who has only heard of it.
            assert f"worker {absent} to begin" in str(outcome)


@pytest.mark.parametrize("unlucky", [0, 1, 2])
def test_an_unforeseen_error_while_reading_is_told_to_all_at_once(
    tmp_path: Path, unlucky: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "START_TIMEOUT", PATIENCE * 10)  # told, not timed out
    store = saved_run(tmp_path, 3)
    stores = [store] * 3
    stores[unlucky] = Failing(
        store.path, lambda name: name.endswith(".safetensors"), MemoryError("no room for the kernel")
    )
    outcomes = begin_all(stores)
    assert all(isinstance(outcome, Exception) for outcome in outcomes)
    assert all("no room for the kernel" in str(outcome) for outcome in outcomes)


def test_a_directory_that_fails_for_one_worker_after_the_claim_is_an_error_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "START_TIMEOUT", PATIENCE * 10)
    store = saved_run(tmp_path, 3)
    broken = Failing(store.path, lambda name: name == "list ", StoreUnavailable("stale file handle"))
    outcomes = begin_all([store, broken])
    assert all("stale file handle" in str(outcome) for outcome in outcomes)


def test_a_worker_that_loses_the_one_that_hosts_the_service_has_a_status_of_its_own(tmp_path: Path) -> None:
    service = MemoryService(2)
    service.lose()
    store = LocalStore(tmp_path / "run")
    for coordinator in service.coordinators():
        with pytest.raises(CoordinationLost) as left:
            startup.begin(coordinator, 1, store, store.prepare, lambda: IDENTITY)
        assert status_of(left.value) == EXIT_WORKER_LOST


@pytest.mark.parametrize(
    ("says", "shared"), [(("here", "here", "here"), True), (("here", "here", "there"), False)]
)
def test_workers_learn_whether_all_of_them_say_the_same(says: tuple[str, ...], shared: bool) -> None:
    heard: dict[int, bool] = {}
    coordinators = MemoryService(len(says)).coordinators()

    def ask(member: int) -> None:
        heard[member] = handshake.Handshake(coordinators[member], 1).is_shared("way", says[member])

    _side_by_side(ask, len(says))
    assert heard == dict.fromkeys(range(len(says)), shared)


def test_an_error_before_the_question_ends_the_start_of_those_who_wait_for_the_answer() -> None:
    raised: dict[int, Exception] = {}
    coordinators = MemoryService(2).coordinators()

    def ask(member: int) -> None:
        own = handshake.Handshake(coordinators[member], 1)
        try:
            with own.telling_of("way"):
                if member == broken:
                    raise ValueError("no such file")
                own.is_shared("way", "here")
        except (ValueError, StartError) as error:
            raised[member] = error

    for broken in (0, 1):
        raised.clear()
        coordinators = MemoryService(2).coordinators()
        _side_by_side(ask, 2)
        assert isinstance(raised[broken], ValueError)
        assert "no such file" in str(raised[1 - broken])
        assert not isinstance(raised[1 - broken], WorkerMissing)


def _side_by_side(call: Callable[[int], None], members: int) -> None:
    threads = [threading.Thread(target=call, args=(member,)) for member in range(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
