from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_preempt.agreement.alignment import Kind, Plan, Position
from keras_preempt.agreement.grace import longest_wait
from keras_preempt.checkpoint import failpoints, incarnations
from keras_preempt.checkpoint.boxes import Box, ShardedSpec
from keras_preempt.checkpoint.commit import read_manifest
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Shown
from keras_preempt.report import progress
from keras_preempt.report.events import EventLog
from keras_preempt.training import saver as saver_module
from keras_preempt.training.pace import Pace
from keras_preempt.training.saver import Content, Saved, Saver
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

    def write(
        self, prepared: object, cancelled: Callable[[], bool], shown: Shown | None = None, **options: Any
    ) -> Saved:
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


GRACE = 9.0
"""Seconds between a notice and the end of its machine."""

SLOWEST = 2.0
"""Seconds that a save was seen to take. A worker under notice leaves itself as much and more to write alone."""


class OneKernel:
    """The state of a model with one mirrored variable."""

    def mirrored_signature(self) -> list[dict[str, Any]]:
        return [{"name": "kernel", "dtype": "float32", "shape": (2, 3)}]

    def capture_mirrored(self, wanted: Any, **options: Any) -> dict[str, Any]:
        return {"kernel": np.ones((2, 3), np.float32)} if "kernel" in wanted else {}

    def capture_local(self, **options: Any) -> dict[str, Any]:
        return {}

    def sharded_specs(self) -> list[ShardedSpec]:
        return []

    def capture_boxes(self, boxes: list[Box], *, copy: bool) -> dict[Box, Any]:
        return {}


class Late:
    """The saves of worker 0 of two, whose other worker never writes its part; what is known of worker 0's end.

    Attributes:
        written: Set when worker 0's part is on disk.
        ends_at: When its machine goes, in monotonic seconds; None as long as nobody has said.
    """

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder)
        self.store.prepare()
        assert incarnations.claim(self.store, {}) == 1
        self.pace = Pace()
        self.pace.saved(SLOWEST)
        self.ends_at: float | None = None
        self.written = threading.Event()
        session: Any = SimpleNamespace(
            resuming=False, restored_name="", capture=lambda position: Content({}, {}, {}, {})
        )
        model: Any = OneKernel()
        saver = Saver(self.store, model, 0, 2, 1, Retention(9), EventLog(0), patience=self._patience)
        self.saves = Saves(session, saver, chosen(None), 2, self.pace)

    def _patience(self) -> float | None:
        if self.ends_at is None:
            return None
        return longest_wait(self.ends_at - time.monotonic(), self.pace.save_seconds)

    def in_flight(self, kind: Kind) -> None:
        """Begins a save in the background, which soon waits for the other worker."""
        doomed = (0,) if kind is Kind.PREEMPTED else ()
        self.saves.in_background(Plan(0, kind, (0, 1), doomed), Position(0, "train", 1, 1))
        assert self.written.wait(30)

    def notice(self, seconds: float = GRACE) -> None:
        self.ends_at = time.monotonic() + seconds


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Late]:
    monkeypatch.setattr(saver_module, "COMMIT_PATIENCE", 10 * GRACE)
    found = Late(tmp_path)
    failpoints.watch("save.after-part", found.written.set)
    yield found
    failpoints.unwatch("save.after-part")
    found.saves.end()


@pytest.mark.parametrize(
    ("kind", "last", "position"),
    [
        pytest.param(Kind.PERIODIC, Kind.PREEMPTED, Position(0, "train", 1, 1), id="the same step"),
        pytest.param(Kind.PERIODIC, Kind.PREEMPTED, Position(1, "end", 0, 2), id="the end of training"),
        pytest.param(Kind.PREEMPTED, Kind.DEADLINE, Position(0, "train", 2, 2), id="a save that is owed"),
    ],
)
def test_a_save_in_flight_waits_no_longer_for_others_than_a_notice_leaves_time_to_write_alone(
    kind: Kind, last: Kind, position: Position, late: Late
) -> None:
    late.in_flight(kind)
    late.notice()
    assert late.ends_at is not None
    saved = late.saves.at_once(Plan(1, last, (1,), (0,)), position)
    assert time.monotonic() < late.ends_at
    assert saved.name is not None
    manifest = read_manifest(late.store, saved.name)
    assert (manifest.step, manifest.writers, manifest.missing) == (position.step, (0,), (1,))
    assert len(list(Path(late.store.url).glob("step-*/*"))) == 1  # The attempt that was given up is gone.


def test_a_save_that_has_waited_long_already_still_leaves_time_to_write(late: Late) -> None:
    late.in_flight(Kind.PERIODIC)
    since = late.pace._saving_since
    assert since is not None
    late.pace._saving_since = since - 30  # Which says nothing about how long it takes to write everything.
    late.notice()
    assert late.ends_at is not None
    saved = late.saves.at_once(Plan(1, Kind.PREEMPTED, (1,), (0,)), Position(0, "train", 1, 1))
    assert saved.name is not None
    assert time.monotonic() < late.ends_at


def test_the_first_save_at_a_notice_waits_no_longer_for_the_one_in_flight(late: Late) -> None:
    late.in_flight(Kind.PERIODIC)
    late.notice()
    assert late.ends_at is not None
    late.saves.in_background(Plan(1, Kind.PREEMPTED, (1,), (0,)), Position(0, "train", 2, 2))
    assert time.monotonic() < late.ends_at


def test_a_notice_during_the_save_at_the_end_cuts_its_wait(late: Late) -> None:
    def notice_when_it_waits() -> None:
        assert late.written.wait(30)
        late.notice()

    timer = threading.Thread(target=notice_when_it_waits)
    timer.start()
    saved = late.saves.at_once(Plan(1, Kind.FINISHED, (0, 1), ()), Position(1, "end", 0, 2))
    timer.join()
    assert late.ends_at is not None
    assert time.monotonic() < late.ends_at
    assert saved.name is not None
