"""What takes long shows how far it is, and what does not shows nothing."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console

from keras_preempt.report import progress as module
from keras_preempt.report.progress import INTERVAL, MIB, PATIENCE, InBackground, progress


@pytest.fixture(autouse=True)
def _every_line_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_operation_that_is_over_shows_nothing_if_it_took_a_moment_and_never_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, stream = Clock(), io.StringIO()
    with progress("Replaying", 9, "batches", clock=clock) as step:
        for _ in range(9):
            clock.now += PATIENCE / 10
            step()
    with progress("Replaying", 9, "batches", clock=clock, console=_terminal(stream)) as step:
        step(8)
    clock.now += PATIENCE
    step()  # Such as in a thread that is late.
    assert caplog.messages == []
    assert stream.getvalue() == ""


def test_without_a_terminal_a_line_every_few_seconds_says_how_much_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, console = Clock(), Console(file=io.StringIO())
    with progress("Replaying", 100, "batches", clock=clock, console=console) as step:
        for _ in range(25):
            clock.now += 1
            step(2)
    lines = caplog.messages
    assert lines[0] == "Replaying: 6 of 100 batches in 3 s, about 47 s left."
    assert len(lines) == 1 + int((25 - PATIENCE) // INTERVAL)


def test_on_a_terminal_a_bar_is_drawn_and_removed(caplog: pytest.LogCaptureFixture) -> None:
    clock, stream = Clock(), io.StringIO()
    with progress("Replaying", 4, "batches", clock=clock, console=_terminal(stream)) as step:
        clock.now += PATIENCE + 1
        step(3)
    assert "3 of 4 batches" in stream.getvalue()
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("done", "total", "told"), [(700, 1500, "700 of 1500 MiB"), (3.25, 8, "3.2 of 8.0 MiB")]
)
def test_bytes_are_shown_in_mebibytes(
    caplog: pytest.LogCaptureFixture, done: float, total: int, told: str
) -> None:
    clock, stream = Clock(), io.StringIO()
    for console in (_terminal(stream), Console(file=io.StringIO())):
        with progress("Saving", total * MIB, "MiB", scale=MIB, clock=clock, console=console) as step:
            clock.now += PATIENCE
            step(int(done * MIB))
    assert told in stream.getvalue()
    assert caplog.messages[0].startswith(f"Saving: {told} in 3 s")


def test_pieces_that_have_to_be_done_again_are_subtracted(caplog: pytest.LogCaptureFixture) -> None:
    clock, console = Clock(), Console(file=io.StringIO())
    with progress("Reading", 10, "files", clock=clock, console=console) as step:
        step(4)
        clock.now += PATIENCE
        step(-4)
        clock.now += INTERVAL
        step(5)
    assert [line.partition(" in ")[0] for line in caplog.messages] == [
        "Reading: 0 of 10 files",
        "Reading: 5 of 10 files",
    ]


def test_threads_that_call_at_once_get_one_line_and_none_of_their_counts_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    both = threading.Barrier(2)

    class Meeting(Console):
        @property
        def is_terminal(self) -> bool:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.3)  # Two threads meet here only if they can be here at once.
            return False

    clock, console = Clock(), Meeting(file=io.StringIO())
    both.reset()  # rich has asked, too.
    with (
        progress("Reading", 8, "files", clock=clock, console=console) as step,
        ThreadPoolExecutor(8) as pool,
    ):
        clock.now += PATIENCE
        for done in [pool.submit(step) for _ in range(8)]:
            done.result()
        assert len(caplog.messages) == 1
        clock.now += INTERVAL
        step(0)
    assert caplog.messages[1].startswith("Reading: 8 of 8 files")


def test_background_work_is_shown_while_it_is_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    watch = InBackground()
    with watch.transfer("Saving", 50 * MIB) as step:
        step(10 * MIB)
        assert caplog.messages == []
        with watch.waited_for():
            step(15 * MIB)
        step(15 * MIB)
    with watch.waited_for(), watch.transfer("Saving more", 50 * MIB) as step:
        step(MIB)
    assert [line.partition(" in ")[0] for line in caplog.messages] == [
        "Saving: 25 of 50 MiB",
        "Saving more: 1 of 50 MiB",
    ]


def test_an_error_in_the_block_ends_the_display_and_propagates() -> None:
    clock, stream = Clock(), io.StringIO()

    def fail() -> None:
        with progress("Replaying", 4, "batches", clock=clock, console=_terminal(stream)) as step:
            clock.now += PATIENCE + 1
            step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert stream.getvalue().endswith("\x1b[2K")  # The bar's line is cleared.


def _terminal(stream: io.StringIO) -> Console:
    return Console(file=stream, force_terminal=True, width=100, legacy_windows=False)
