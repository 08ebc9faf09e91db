from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from keras_preempt.agreement.alignment import Kind, Plan, Position
from keras_preempt.checkpoint.storage.store import Shown
from keras_preempt.report import progress
from keras_preempt.training.pace import Pace
from keras_preempt.training.saver import Saved
from keras_preempt.training.saves import Saves
from keras_preempt.training.schedule import chosen

PLAN = Plan(0, Kind.PERIODIC, (0,), ())


class Line(logging.Handler):
    """Waits for a line of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.come = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.come.set()


class SlowSaver:
    """Writes until a line of the log has come; says whether one has."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.began = threading.Event()
        self.told: list[bool] = []

    def prepare(self, *arguments: Any, **options: Any) -> object:
        return object()

    def write(self, prepared: object, cancelled: Callable[[], bool], shown: Shown | None = None) -> Saved:
        if shown is not None:
            with shown("Saving", 8 << 20) as moved:
                moved(1 << 20)
                self.began.set()
                for _ in range(3000):
                    if self._line.come.wait(0.01):
                        break
                    moved(1)
            self.told.append(self._line.come.is_set())
        return Saved("step-00000001/00001-0000", 0.1)


def test_a_save_in_the_background_is_shown_when_the_end_of_training_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    caplog.set_level(
        logging.INFO, "keras_preempt"
    )  # Not the attribute: loggers remember what they let through.
    line, logger = Line(), logging.getLogger("keras_preempt")
    saver = SlowSaver(line)
    session: Any = SimpleNamespace(resuming=False, restored_name="", capture=lambda position: None)
    anything: Any = saver
    saves = Saves(session, anything, chosen(None), 1, Pace(time.time))
    logger.addHandler(line)
    try:
        saves.in_background(PLAN, Position(0, "train", 1, 1))
        assert saver.began.wait(30)
        assert not line.come.is_set()  # Training goes on.
        saves.at_once(PLAN, Position(1, "end", 0, 2))
        assert saver.told == [True]
    finally:
        logger.removeHandler(line)
