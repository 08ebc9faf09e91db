"""JAX's own record of the job that this process takes part in: its coordination client and service.

`jax.distributed.initialize` starts the service in process 0 and connects a client to it in each process. Keras calls it
in `keras.distribution.initialize`. JAX has no public way to these two.

Verified with JAX 0.6.0 to 0.12.0.1; tests/backend/jax/test_canaries.py has a canary for each private name.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import logging
import secrets
import time
from typing import Any

import jax

from keras_preempt.backend.versions import UnsupportedJax
from keras_preempt.process.threads import started

logger = logging.getLogger("keras_preempt")

NOTICE_KEY = "RECEIVED_PREEMPTION_NOTICE"
"""The key under which JAX's own SIGTERM handler leaves when the signal came. It does not say to which process."""

LEAVE_TOGETHER_SECONDS = 5.0
"""How long a process that has saved waits for the others before it leaves their job."""

FINISH_SECONDS = 300.0
"""How long a process that has finished waits for the others, as JAX does by default."""

LAST_SECONDS = 8.0
"""How long process 0 waits at its end for the others if the job has failed: they notice, and end on their own."""

LAST_OF_SAVED_SECONDS = 18.0
"""The same if all have saved, but one of them does not end: it is ended after as many seconds."""

_END_SECONDS = 5.0
"""How long Python may take to end after its exit functions: 0.7 to 1 s was measured, and 3.6 s with three times as many
busy programs as processors. Process 0 cannot know when the others have ended."""

_LEFT = "keras_preempt/left"
_NAME = "keras_preempt/name"
_NAME_SECONDS = 5.0

_METHODS = (
    "blocking_key_value_get",
    "get_live_nodes",
    "key_value_delete",
    "key_value_set",
    "key_value_try_get",
    "wait_at_barrier",
)
_HELD = ("client", "service", "preemption_sync_manager")


def _state() -> Any:
    try:
        state = importlib.import_module("jax._src.distributed").global_state
    except (ImportError, AttributeError) as error:
        raise UnsupportedJax("the module jax._src.distributed with a global_state") from error
    for name in _HELD:
        if not hasattr(state, name):
            raise UnsupportedJax(f"the attribute {name} of its distributed state")
    return state


def client() -> Any:
    """Returns the client of the coordination service; None if this process takes part in no job.

    Raises UnsupportedJax if the installed JAX keeps it elsewhere, or if its client has other methods.
    """
    found = _state().client
    for name in _METHODS if found is not None else ():
        if not hasattr(found, name):
            raise UnsupportedJax(f"the method {name} of its coordination client")
    return found


def is_recoverable() -> bool:
    """Whether JAX was told not to abort the others when a process is gone. JAX 0.6 has no such option."""
    return bool(getattr(jax.config, "jax_enable_recoverability", False))


def name_of_job() -> str:
    """Returns a name of this start of the job, the same in all its processes; empty if it has none."""
    found = client()
    if found is None:
        return ""
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # Another process has named it.
        found.key_value_set(_NAME, secrets.token_hex(8))
    try:
        return str(found.blocking_key_value_get(_NAME, round(_NAME_SECONDS * 1000)))
    except jax.errors.JaxRuntimeError:  # Process 0 has ended, and with it the service.
        return ""


def leave_alone() -> None:
    """Makes this process end without the others.

    When a process ends, JAX waits minutes until all end. A process that has failed, or has lost another one, would keep
    the others from ending, and would end with SIGABRT itself.
    """
    state = _state()
    for name in _HELD:
        held = getattr(state, name)
        if held is not None:
            # Kept forever: dropping it would wait as well.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
            setattr(state, name, None)


def leave_alone_at_the_end() -> None:
    """Makes this process end without the others, process 0 after them; training again takes it back."""
    atexit.unregister(_leave_one_by_one)
    atexit.register(_leave_one_by_one)


def announce_end() -> None:
    """Tells process 0, which waits for it, that this process is about to end."""
    state = _state()
    if state.client is not None and state.process_id:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            state.client.key_value_set(f"{_LEFT}/{state.process_id}", "")


def leave_one_after_the_other(seconds: float | None = None) -> None:
    """Waits in process 0, by default for `LAST_SECONDS`, until the others are about to end; these say that they are.

    Process 0 takes the service with it, and JAX ends every process that is still connected with SIGABRT.
    """
    state = _state()
    found = state.client
    if found is None:
        return
    if state.process_id:
        announce_end()
        return
    limit = time.monotonic() + (LAST_SECONDS if seconds is None else seconds)
    ending = False
    for other in range(1, state.num_processes):
        left = max(1, round((limit - time.monotonic()) * 1000))
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # It was killed, or its connection is broken.
            found.blocking_key_value_get(f"{_LEFT}/{other}", left)
            ending = True
    if ending:
        time.sleep(_END_SECONDS)


def _leave_one_by_one() -> None:
    leave_one_after_the_other()
    leave_alone()


def early_notice(timeout: float = 0.0) -> str | None:
    """Returns when JAX's own handler has caught a SIGTERM of a process of this job; None if it has caught none.

    `jax.distributed.initialize` installs it, so it catches what comes before a fit listens. JAX reports a signal up to
    a second later.
    """
    found = client()
    if found is None:
        return None
    try:
        if timeout:
            return str(found.blocking_key_value_get(NOTICE_KEY, max(1, round(timeout * 1000))))
        return str(found.key_value_try_get(NOTICE_KEY))
    except jax.errors.JaxRuntimeError:  # No notice; or the service is gone, which training will find out.
        return None


def leave_in_order() -> None:
    """Makes this process, if it ends well, leave the job in an order that JAX itself does not keep.

    With `jax_enable_recoverability` no process waits for the others at its end. If process 0 ends first, it takes the
    service with it, and JAX ends all others with SIGABRT.
    """
    atexit.unregister(_leave_one_by_one)
    atexit.unregister(_leave_soon)
    if not _ordered:
        _ordered.append(True)
        atexit.register(_leave, FINISH_SECONDS, only_if_recoverable=True)


def leave_service_last() -> None:
    """Makes process 0 end after the others, where each trains a model of its own and does not wait.

    As in `leave_in_order`, this matters with `jax_enable_recoverability`. Without it JAX itself waits, for minutes.
    """
    for earlier in (_leave_one_by_one, _leave_soon, _leave_last):
        atexit.unregister(earlier)
    atexit.register(_leave_last)


def leave_refused() -> None:
    """Makes a process that trains nothing end soon, although the others of its job train."""
    # If no process waits for others, JAX' own way of leaving is right. If process 0 ended, all others would.
    if not is_recoverable() or _state().process_id == 0:
        leave_alone_at_the_end()


def leave_together() -> None:
    """Leaves the job at the end of this process together with the others, for which it waits a few seconds.

    If the program trains again before that, `leave_in_order` or `leave_service_last` takes it back.
    """
    if _state().client is not None:
        atexit.register(_leave_soon)


def _leave_soon() -> None:
    _leave(LEAVE_TOGETHER_SECONDS)


_ordered: list[bool] = []


def _leave(patience: float, *, only_if_recoverable: bool = False) -> None:
    state, recoverable = _state(), is_recoverable()
    found = state.client
    if found is None or (only_if_recoverable and not recoverable):
        return
    try:
        try:
            found.wait_at_barrier("keras_preempt/leaves", round(patience * 1000))
        except jax.errors.JaxRuntimeError as error:
            # They still train, each its own model. JAX can do without this process if it says that it leaves.
            if not (recoverable and state.process_id and str(error).startswith("DEADLINE_EXCEEDED")):
                raise
        if recoverable and state.process_id == 0:
            _wait_until_alone(found, state.num_processes, LEAVE_TOGETHER_SECONDS)
        jax.distributed.shutdown()
    except Exception as error:  # Whatever JAX raises: another process is gone, or still at work.
        logger.info("The other processes of the job have not left with this one: %s", str(error)[:200])
        with contextlib.suppress(UnsupportedJax):
            if not only_if_recoverable:
                leave_one_after_the_other(LAST_OF_SAVED_SECONDS)
            leave_alone()


def _leave_last() -> None:
    state = _state()
    if state.client is not None and state.process_id == 0 and is_recoverable():
        _wait_until_alone(state.client, state.num_processes, FINISH_SECONDS)


def _wait_until_alone(found: Any, processes: int, patience: float) -> None:
    # The service answers when each process has asked as well, or has left. The call itself has no timeout.
    asking = started(found.get_live_nodes, "keras_preempt-alone", list(range(processes)))
    if asking is not None:
        asking.join(patience)
