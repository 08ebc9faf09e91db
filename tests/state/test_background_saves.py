"""Which saves of callbacks a process waits for before it ends, and for how long."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from keras_preempt.state import background_saves


class Saver:
    """Stands for a checkpointer of Orbax."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.waited = seconds, 0

    def wait_until_finished(self) -> None:
        time.sleep(self.seconds)
        self.waited += 1


Saver.__module__ = "orbax.checkpoint.checkpoint_manager"


class Users:
    """Has the methods of a checkpointer, and is the user's own."""

    def wait_until_finished(self) -> None:
        raise AssertionError("it is never asked")


def held(value: Any) -> Any:
    return SimpleNamespace(held=value, name="x", number=3)


@pytest.mark.parametrize("wrap", [lambda each: each, lambda each: [each], lambda each: {"a": each}])
def test_checkpointers_of_orbax_and_futures_that_a_callback_holds_are_waited_for(wrap: Any) -> None:
    saver = Saver()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(time.sleep, 0.3)
        background_saves.wait([held(wrap(saver)), held(wrap(future)), held(Users())], None)
        assert future.done()
    assert saver.waited == 1


def test_a_thread_that_python_would_wait_for_is_waited_for_and_no_other() -> None:
    saving = threading.Thread(target=time.sleep, args=(0.3,))
    beating = threading.Thread(target=time.sleep, args=(9,), daemon=True)
    never_started = threading.Thread(target=time.sleep)
    saving.start()
    beating.start()
    began = time.monotonic()
    background_saves.wait([held([saving, beating, never_started])], None)
    assert not saving.is_alive()
    assert time.monotonic() - began < 5


def test_the_wait_has_a_limit_that_the_deadline_cuts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background_saves, "SECONDS", 1.5)
    never: Future[None] = Future()
    background_saves.wait([held(never)], None)
    assert "Waiting for at most 2 s for what SimpleNamespace may save in the background" in caplog.text
    assert "What SimpleNamespace does in the background is not over within 2 s" in caplog.text
    began = time.monotonic()
    background_saves.wait([held(never)], 5.2)
    assert time.monotonic() - began < 1
    background_saves.wait([held(never)], -3.0)
    assert "What SimpleNamespace may still save in the background is not waited for" in caplog.text
    never.cancel()
    never.set_running_or_notify_cancel()  # As whoever runs it does: then those who wait for it go on.
    caplog.clear()
    background_saves.wait([held(never)], None)
    assert caplog.text == ""
    for thread in threading.enumerate():
        if thread.name == "keras_preempt-background-saves":
            thread.join(60)
            assert not thread.is_alive()


def test_a_save_that_fails_is_told_and_the_next_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    failing, after = Saver(), Saver()
    failing.wait_until_finished = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    background_saves.wait([held(failing), held(after)], None)
    assert "has failed: ZeroDivisionError" in caplog.text
    assert after.waited == 1


def test_without_anything_that_saves_nothing_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    before = threading.active_count()
    background_saves.wait([held(Users()), held(None), object()], -1.0)
    assert threading.active_count() == before
    assert caplog.text == ""
