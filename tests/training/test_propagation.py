"""What is told of an error, what is made of it again, and that nothing from outside is evaluated for it."""

from __future__ import annotations

import json
import threading

import pytest
import tensorflow as tf

from keras_preempt.agreement.coordinator import ABORTED, CoordinationLost, LocalCoordinator
from keras_preempt.agreement.messages import Failure
from keras_preempt.backend.place import RemoteWorkers
from keras_preempt.backend.tensorflow.errors import WorkerLost
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST, exit_status_of
from keras_preempt.training.leave.propagation import (
    LONGEST_TEXT,
    Origin,
    Propagation,
    failure_of,
    gist,
    rebuilt_error,
)
from tests.agreement.memory_coordinator import MemoryCoordinator, MemoryService


class Reporting(MemoryCoordinator):
    def __init__(self, service: MemoryService, member: int) -> None:
        super().__init__(service, member)
        self.reported: list[tuple[str, int]] = []

    def gone(self) -> frozenset[int]:
        return frozenset()

    def report_error(self, message: str, code: int = ABORTED) -> None:
        self.reported.append((message, code))


class OwnType(Exception):
    pass


def two() -> tuple[Reporting, Reporting]:
    """The leader, and another one."""
    service = MemoryService(2)
    return Reporting(service, 0), Reporting(service, 1)


def as_tensorflow_raises_it(
    message: str, code: type[tf.errors.OpError] = tf.errors.AbortedError
) -> tf.errors.OpError:
    text = f"Collective ops is aborted by: Error reported from /job:worker/task:1: {message}\nRestart your program."
    return code(None, None, text)


OF_TENSORFLOW = tf.errors.ResourceExhaustedError(None, None, "é")
SWALLOWED = tf.errors.OutOfRangeError(None, None, "the end")  # By loops over data: told under another code.


@pytest.mark.parametrize(
    "error",
    [ValueError("a\nb"), KeyError("x"), OSError("gone"), AssertionError(), OF_TENSORFLOW, SWALLOWED],
    ids=lambda error: type(error).__name__,
)
def test_type_and_text_survive_the_way(error: Exception) -> None:
    failed, other = two()[::-1]
    assert Propagation(failed).settle(error) is error
    ((message, code),) = failed.reported
    raised = Propagation(other).settle(as_tensorflow_raises_it(message))
    assert type(raised) is type(error)
    text = str(getattr(error, "message", error))
    assert f"Worker 1: {text}" in (getattr(raised, "message", None) or raised.args[0])
    assert code == (tf.errors.RESOURCE_EXHAUSTED if error is OF_TENSORFLOW else ABORTED)
    assert other.reported == []


UNDECODED = UnicodeDecodeError("utf8", b"x", 0, 1, "x")


@pytest.mark.parametrize(
    "error",
    [OwnType("x"), UNDECODED, StopIteration("x"), KeyboardInterrupt("x"), SystemExit("x")],
    ids=lambda error: type(error).__name__,
)
def test_what_cannot_be_made_of_a_text_is_a_runtime_error_that_names_it(error: BaseException) -> None:
    raised = rebuilt_error(failure_of(error, 3))
    assert type(raised) is RuntimeError
    assert str(raised).startswith("Worker 3: ")
    assert type(error).__name__ in str(raised)


@pytest.mark.parametrize(
    "name", ["eval", "exec", "SystemExit", "KeyboardInterrupt", "print", "os.system", "__import__", ""]
)
def test_a_name_that_is_no_exception_is_never_called(name: str) -> None:
    raised = rebuilt_error(Failure(1, name, 0, "print('executed')"))
    assert type(raised) is RuntimeError


def test_a_long_text_is_cut_in_the_middle() -> None:
    text = "begin" + "x" * 100_000 + "end"
    cut = failure_of(ValueError(text), 0).text
    assert len(cut) < LONGEST_TEXT + 10
    assert cut.startswith("begin")
    assert cut.endswith("end")


def test_an_error_is_told_once_and_origins_are_told_apart() -> None:
    failed, other = two()[::-1]
    own, peer = Propagation(failed), Propagation(other)
    own.settle(ValueError("first"))
    own.settle(ValueError("second"))
    assert len(failed.reported) == 1
    # Also if it has lost its message on the way.
    raised = Propagation(other).settle(tf.errors.UnavailableError(None, None, "Socket closed"))
    assert repr(raised) == "ValueError('Worker 1: first')"
    assert peer.told() is not None
    assert (own.origin, peer.origin) == (Origin.OWN, Origin.PEER)
    assert own.told() is None


def test_the_loss_of_a_worker_is_not_an_error_of_the_program(caplog: pytest.LogCaptureFixture) -> None:
    survivor = two()[0]
    propagation, error = Propagation(survivor), tf.errors.UnavailableError(None, None, "Socket closed")
    raised = propagation.settle(error)
    assert isinstance(raised, WorkerLost)
    assert raised.message == "Socket closed"
    assert exit_status_of(raised) == EXIT_WORKER_LOST
    assert propagation.origin is Origin.LOST
    assert "neither a preemption" in caplog.text
    assert propagation.settle(raised) is raised  # On its way out it may pass here again.


class Workers(RemoteWorkers):
    gone: bool

    def wait_until_gone(self, timeout: float | None = None) -> bool:
        assert timeout == 0, "an error on its way out must not wait"
        return self.gone


@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize("of_tensorflow", [True, False])
def test_an_error_of_tensorflow_is_a_loss_if_remote_workers_are_gone(gone: bool, of_tensorflow: bool) -> None:
    workers = Workers((("worker", 2),))
    object.__setattr__(workers, "gone", gone)
    with pytest.raises(ValueError) as error:  # noqa: PT011, PT012 (which one it is does not matter)
        if of_tensorflow:
            tf.constant([[1], [1, 2]])
        raise ValueError("of the program")
    propagation = Propagation(LocalCoordinator(), remote=workers)
    raised = propagation.settle(error.value)
    if gone and of_tensorflow:
        assert isinstance(raised, WorkerLost)
        assert str(error.value) in str(raised)
    else:
        assert raised is error.value
    assert propagation.origin is (Origin.LOST if gone and of_tensorflow else Origin.OWN)


@pytest.mark.parametrize("kind", [tf.errors.UnavailableError, tf.errors.AbortedError])
def test_the_loss_that_another_worker_has_noticed_first_is_a_loss_and_no_error_of_that_worker(
    kind: type[tf.errors.OpError], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = two()
    Propagation(first).settle(tf.errors.UnavailableError(None, None, "worker 2 is gone"))
    ((message, _),) = first.reported
    caplog.clear()
    for propagation in (Propagation(second), Propagation(second)):
        raised = propagation.settle(as_tensorflow_raises_it(message, kind))
        assert isinstance(raised, WorkerLost)
        assert raised.message == "Worker 0 reports that another one is gone: worker 2 is gone"
        assert propagation.origin is Origin.LOST
    assert "cannot be reached: worker 0 reports it: worker 2 is gone. This" in caplog.text
    assert isinstance(Propagation(second).told(), WorkerLost)
    assert "has failed" not in caplog.text


def test_only_what_can_lose_workers_has_lost_one_and_one_process_tells_nobody() -> None:
    error = tf.errors.UnavailableError(None, None, "Socket closed")
    alone = Propagation(LocalCoordinator())
    assert alone.settle(error) is error
    assert (alone.told(), alone.origin) == (None, Origin.OWN)
    assert isinstance(Propagation(LocalCoordinator(), remote=True).settle(error), WorkerLost)


def test_a_worker_whose_service_is_gone_keeps_its_error() -> None:
    service = MemoryService(2)
    service.lose()
    error = ValueError("boom")
    assert Propagation(Reporting(service, 1)).settle(error) is error
    with pytest.raises(CoordinationLost):
        Reporting(service, 1).put_if_absent("x", "y")


def test_the_leader_stays_until_the_others_have_heard() -> None:
    service = MemoryService(2)
    leader, other = Reporting(service, 0), Reporting(service, 1)
    settling = threading.Thread(target=lambda: Propagation(leader).settle(ValueError("boom")))
    settling.start()
    service.await_call(0, "wait", "seen/1")
    assert settling.is_alive()
    ((message, _),) = leader.reported
    Propagation(other).settle(as_tensorflow_raises_it(message))
    settling.join(1.5)
    assert not settling.is_alive()


def test_the_gist_of_an_error_in_a_graph_is_what_is_wrong() -> None:
    where = 'Graph execution error:\n\nDetected at node x\n  File "a.py", line 1\n\n'
    assert gist(f"{where}OOM when allocating\n\t [[x]]") == "OOM when allocating"
    assert gist("") == ""
    assert json.loads(json.dumps(gist("one\ntwo"))) == "one"
