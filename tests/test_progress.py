"""What takes long shows how far it is, and what does not shows nothing."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from keras_preempt.progress import INTERVAL, PATIENCE, progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_is_over_within_a_moment_shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clock, stream = Clock(), io.StringIO()
    with caplog.at_level(logging.INFO), progress("Replaying", 9, "batches", clock=clock) as step:
        for _ in range(9):
            clock.now += PATIENCE / 10
            step()
    with progress("Replaying", 9, "batches", clock=clock, console=_terminal(stream)) as step:
        step(9)
    assert caplog.messages == []
    assert stream.getvalue() == ""


def test_without_a_terminal_a_line_every_few_seconds_says_how_much_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    console = Console(file=io.StringIO())
    with (
        caplog.at_level(logging.INFO),
        progress("Replaying", 100, "batches", clock=clock, console=console) as step,
    ):
        for _ in range(25):
            clock.now += 1
            step(2)
    lines = caplog.messages
    assert lines[0] == "Replaying: 6 of 100 batches in 3 s, about 47 s left."
    assert len(lines) == 1 + int((25 - PATIENCE) // INTERVAL)


def test_on_a_terminal_a_bar_is_drawn_and_removed(caplog: pytest.LogCaptureFixture) -> None:
    clock, stream = Clock(), io.StringIO()
    with (
        caplog.at_level(logging.INFO),
        progress("Replaying", 4, "batches", clock=clock, console=_terminal(stream)) as step,
    ):
        clock.now += PATIENCE + 1
        step(3)
    assert "3 of 4 batches" in stream.getvalue()
    assert caplog.messages == []


def test_an_error_inside_ends_it_and_gets_out() -> None:
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
