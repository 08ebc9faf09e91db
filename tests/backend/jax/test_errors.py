"""Errors of JAX: which say that another process is gone, and how they are told to another process."""

from __future__ import annotations

import jax
import pytest

from keras_preempt.agreement.coordinator import ABORTED
from keras_preempt.backend.jax import errors as of_jax
from keras_preempt.backend.jax.backend import BACKEND
from keras_preempt.backend.place import NO_WORKERS
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST

Error = jax.errors.JaxRuntimeError
GLOO = (
    "UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
    "[127.0.0.1]:21383"
)
NCCL = "INTERNAL: NCCL operation ncclAllReduce failed: remote process exited or there was a network error"
HEARTBEAT = (
    "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n/job:jax_worker/task:1"
)


errors = BACKEND.errors


@pytest.mark.parametrize(
    ("error", "gone"),
    [
        (Error(GLOO), True),
        (ValueError(GLOO), True),
        (RuntimeError(HEARTBEAT), True),
        (Error(NCCL), True),
        (
            Error(
                "ABORTED: /job:jax_worker/task:1 unexpectedly tried to connect with a different incarnation."
            ),
            True,
        ),
        (Error("UNAVAILABLE: failed to connect to all addresses; last error: Connection refused"), True),
        (Error("UNAVAILABLE: Socket closed"), True),
        (of_jax.WorkerLost("anything"), True),
        (Error("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 34359738368 bytes."), False),
        (Error("INTERNAL: Failed to launch CUDA kernel"), False),
        (ValueError("the user's own error"), False),
        (ValueError("my database: Connection reset by peer"), False),  # It does not begin as JAX's do.
        (OSError(GLOO), False),
        (KeyboardInterrupt(), False),
    ],
    ids=lambda value: (
        f"{type(value).__name__}-{value!s:.20}" if isinstance(value, BaseException) else str(value)
    ),
)
def test_an_error_says_that_a_process_is_gone_under_each_of_its_names(
    error: BaseException, gone: bool
) -> None:
    assert errors.says_a_worker_is_gone(error) == gone
    assert errors.says_a_loss(error, NO_WORKERS) == gone
    assert errors.may_hide_another(error) == gone


def test_an_array_that_a_failed_step_has_taken_is_an_error_of_jax() -> None:
    donated = jax.jit(lambda x: x + 1, donate_argnums=0)
    array = jax.numpy.ones(3)
    donated(array)
    with pytest.raises(RuntimeError) as raised:
        array + 1
    assert errors.described(raised.value)[0] == 2, f"JAX says it otherwise: {raised.value}"
    assert not errors.says_a_worker_is_gone(raised.value)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Error("NOT_FOUND: no such key"), 5),
        (ValueError(GLOO), 2),
        (RuntimeError("INTERNAL: something"), 13),
        (Error("of no code that is known"), 2),
        (ValueError("the user's own error"), 0),
        (KeyError("INTERNAL: a key"), 0),
    ],
)
def test_an_error_is_described_by_its_code_and_text(error: BaseException, code: int) -> None:
    assert errors.described(error) == (code, str(error))


def test_an_error_of_each_code_is_the_same_when_it_is_told_and_there_is_none_of_no_code() -> None:
    for code in range(1, 17):
        made = errors.of_code(code, "Worker 1: it failed")
        assert isinstance(made, Error)
        assert errors.described(made)[0] == code
        again = errors.of_code(*errors.described(made))
        assert str(again) == str(made), "the word is not put before it twice"
    assert errors.of_code(0, "text") is None
    assert errors.of_code(17, "text") is None
    assert errors.code_to_report(0) == ABORTED
    assert errors.code_to_report(7) == 7


def test_a_loss_ends_a_program_with_its_own_status() -> None:
    lost = errors.lost(ValueError(GLOO))
    assert isinstance(lost, of_jax.WorkerLost)
    assert str(lost) == GLOO
    assert errors.lost(lost) is lost
    assert EXIT_WORKER_LOST == 69


def test_jax_tells_neither_of_a_preemption_nor_of_what_nobody_has_waited_for() -> None:
    errors.check_preemption("/job:worker/task:1")
    errors.forget_asynchronous()
    assert not errors.check_preemption_is_linked()
    assert errors.task_preempted_by(Error(GLOO)) is None
    assert not errors.says_the_service_is_out_of_reach(Error(HEARTBEAT))
    assert not errors.ends_collectives
