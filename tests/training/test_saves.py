"""Saves at once and in the background, which others are waited for, and saves of a model that is divided."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from keras_preempt.agreement.grace import longest_wait
from keras_preempt.agreement.messages import Kind, Plan, Position
from keras_preempt.checkpoint import failpoints, incarnations
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.manifest import read_manifest
from keras_preempt.checkpoint.reader import load
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Shown
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.values import Box, Piece, Value
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.report import progress
from keras_preempt.report.events import EventLog
from keras_preempt.state.component import Content
from keras_preempt.training.save import saver as saver_module
from keras_preempt.training.save.pace import Pace
from keras_preempt.training.save.saver import Saved, Saver
from keras_preempt.training.save.saves import BackgroundSave, Saves
from keras_preempt.training.save.schedule import Interval, schedule_of
from keras_preempt.training.save.tidier import Tidier
from tests.checkpoint.builders import new_store
from tests.checkpoint.round_table import together

HERE = Position(0, "train", 1, 1)
VALUES = np.arange(12, dtype=np.float32).reshape(2, 6)
MEMBERS = 3


class Bias:
    """The state of a model of which every worker has all, a bias."""

    def values(self) -> list[Value]:
        return [Value("bias", "float32", (6,))]

    def capture_local(self, **options: Any) -> dict[str, Array]:
        return {}

    def read(self, boxes: Iterable[Box], *, copy: bool) -> dict[Box, Array]:
        return {box: box.of(np.ones(6, np.float32) if box.flat else VALUES) for box in boxes}


class Columns(Bias):
    """With a kernel as well, of which two columns each lie on some of the workers."""

    def __init__(self, *holders: tuple[int, ...]) -> None:
        self._pieces = tuple(Piece((0, 2 * n), (2, 2 * n + 2), held) for n, held in enumerate(holders))

    def values(self) -> list[Value]:
        return [*super().values(), Value("kernel", "float32", (2, 6), self._pieces)]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    # Who waits for a worker that cannot come is found by `together`.
    monkeypatch.setattr(saver_module, "COMMIT_PATIENCE", 600.0)
    made = new_store(tmp_path)
    assert incarnations.claim(made, {}) == 1
    return made


def session_of(content: Content | None) -> Any:
    return SimpleNamespace(resuming=False, restored_name="", capture=lambda position: content)


NOTHING = Content({})


def worker_of(member: int, members: int) -> Any:
    """The coordinator of one of several workers, none of which is known to be gone."""
    return SimpleNamespace(member=member, members=members, gone=frozenset)


def save(
    store: LocalStore,
    plan: Plan,
    *holders: tuple[int, ...],
    gone: tuple[int, ...] = (),
    content: Content = NOTHING,
) -> list[Saved]:
    """Lets the workers that are not gone save at once; returns what came of each."""
    model: Any = Columns(*holders)
    # Each knows from the start which workers are gone.
    peers: Any = SimpleNamespace(gone=frozenset(gone), watched=contextlib.nullcontext)

    def worker(member: int) -> Callable[[], Saved]:
        tidier = Tidier(store, Retention(9), 1)
        saver = Saver(store, model, 1, tidier, EventLog(member), worker_of(member, MEMBERS))
        saver.peers = peers
        saves = Saves(session_of(content), saver, schedule_of(None), MEMBERS, Pace())
        return lambda: saves.at_once(plan, HERE)

    outcomes = together([worker(member) for member in range(MEMBERS) if member not in gone])
    assert all(isinstance(outcome, Saved) for outcome in outcomes), outcomes
    return outcomes


def kernel(store: LocalStore) -> Array:
    (info,) = committed(store)
    return load(store, info, 0, 1).values.whole["kernel"]


@pytest.mark.parametrize(
    ("plan", "holders", "gone", "parts"),
    [
        (Plan(0, Kind.PREEMPTED, (0, 1), (2,)), ((0,), (1, 2), (2,)), (), ((0, 1), (0, 1, 2), ())),
        (Plan(0, Kind.PREEMPTED, (0, 1, 2), ()), ((0,), (1, 2), (0, 1)), (1,), ((0, 2), (0, 2), (1,))),
        # No writer has changed: all that are left come to the same plan.
        (Plan(0, Kind.PREEMPTED, (0,), (1, 2)), ((0,), (1, 2), (1, 2)), (1,), ((0,), (0, 2), (1,))),
    ],
    ids=["what it alone holds", "for one that is gone", "under notice, for another that died"],
)
def test_each_piece_is_saved_once_by_one_that_holds_it_and_is_there(
    plan: Plan, holders: Any, gone: tuple[int, ...], parts: object, store: LocalStore
) -> None:
    outcomes = save(store, plan, *holders, gone=gone)
    assert len({outcome.name for outcome in outcomes}) == 1
    assert outcomes[0].name is not None
    manifest = read_manifest(store, outcomes[0].name)
    assert (manifest.writers, manifest.holders, manifest.missing) == parts
    assert np.array_equal(kernel(store), VALUES)


def test_kept_values_of_pieces_are_written_in_the_place_of_the_present_ones(store: LocalStore) -> None:
    """As of before a validation that changes the weights."""
    kept = [Box("kernel", "float32", (2, 6), (0, 2 * n), (2, 2 * n + 2)) for n in range(2)]
    boxes = {box: np.full((2, 2), n, np.float32) for n, box in enumerate(kept)}
    content = Content({}, WorkerValues(boxes={"kernel": boxes}))
    save(store, Plan(0, Kind.PREEMPTED, (0, 1, 2), ()), (0,), (1, 2), (2,), content=content)
    assert np.array_equal(kernel(store)[:, :4], [[0, 0, 1, 1]] * 2)
    assert np.array_equal(kernel(store)[:, 4:], VALUES[:, 4:])


@pytest.mark.parametrize("doomed", [(), (2,)], ids=["healthy", "under notice"])
def test_the_save_fails_at_once_and_says_why_if_a_worker_that_alone_held_a_piece_is_gone(
    doomed: tuple[int, ...], store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    writers = tuple(member for member in range(MEMBERS) if member not in doomed)
    outcomes = save(store, Plan(0, Kind.PREEMPTED, writers, doomed), (0,), (1, 2), (2,), gone=(2,))
    assert [outcome.name for outcome in outcomes] == [None, None]
    assert committed(store) == []
    said = [text for text in caplog.messages if "only worker 2 held, such as kernel[0:2,4:6]" in text]
    assert len(said) == 2
    assert all("step 1 was NOT saved" in each for each in said)
    assert all("the newest earlier checkpoint stays valid" in each for each in said)
    assert not list(Path(store.url).glob("step-*/*/*")), "nothing is left of the attempts"


PLAN = Plan(0, Kind.PERIODIC, (0,), ())


class SlowSaver:
    """Writes until a line of the log has come; says whether one has."""

    def __init__(self) -> None:
        self.line = threading.Event()
        self.began = threading.Event()
        self.told: list[bool] = []

    def prepare(self, *arguments: Any, **options: Any) -> object:
        return SimpleNamespace(background=True)

    def write(
        self, prepared: object, cancelled: Callable[[], bool], shown: Shown | None = None, **options: Any
    ) -> Saved:
        if shown is not None:
            with shown("Saving", 8 << 20) as moved:
                moved(1 << 20)
                self.began.set()
                for _ in range(3000):
                    if self.line.wait(0.01):
                        break
                    moved(1)
            self.told.append(self.line.is_set())
        return Saved("step-00000001/00001-0000", 0.1)


def test_a_save_in_the_background_is_shown_when_the_end_of_training_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    saver: Any = SlowSaver()
    monkeypatch.setattr(caplog.handler, "filters", [lambda record: saver.line.set() is None])
    saves = Saves(session_of(None), saver, schedule_of(None), 1, Pace(time.time))
    saves.in_background(PLAN, Position(0, "train", 1, 1))
    assert saver.began.wait(30)
    assert not saver.line.is_set()  # Training goes on.
    saves.at_once(PLAN, Position(1, "end", 0, 2))
    assert saver.told == [True]


GRACE = 5.0
"""Seconds between a notice and the end of its machine."""

SLOWEST = 0.75
"""Seconds that a save was seen to take. A worker under notice leaves itself as much and more to write alone."""


class Late:
    """The saves of worker 0 of two, whose other worker never writes its part; what is known of worker 0's end.

    Attributes:
        written: Set when worker 0's part is on disk.
        ends_at: When its machine goes, in monotonic seconds; far away as long as nobody has said.
    """

    def __init__(self, folder: Path) -> None:
        self.store = new_store(folder)
        assert incarnations.claim(self.store, {}) == 1
        self.pace = Pace()
        self.pace.saved(SLOWEST)
        self.ends_at = math.inf
        self.written = threading.Event()
        model: Any = Bias()
        saver = Saver(
            self.store,
            model,
            1,
            Tidier(self.store, Retention(9), 1),
            EventLog(0),
            worker_of(0, 2),
            patience=self._patience,
        )
        self.saves = Saves(session_of(NOTHING), saver, schedule_of(None), 2, self.pace)

    def _patience(self) -> float | None:
        if self.ends_at == math.inf:
            return None
        return longest_wait(self.ends_at - time.monotonic(), self.pace.save_seconds)

    def in_flight(self, kind: Kind) -> None:
        """Begins a save in the background, which soon waits for the other worker."""
        doomed = (0,) if kind is Kind.PREEMPTED else ()
        self.saves.in_background(Plan(0, kind, (0, 1), doomed), Position(0, "train", 1, 1))
        assert self.written.wait(30)

    def notice(self) -> None:
        self.ends_at = time.monotonic() + GRACE

    def save(self, kind: Kind, position: Position) -> Saved:
        """Saves alone, under a plan by which the other worker writes; it has to be done before the machine goes."""
        saved = self.saves.at_once(Plan(1, kind, (1,), (0,)), position)
        assert time.monotonic() < self.ends_at < math.inf
        assert saved.name is not None
        return saved


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Late]:
    monkeypatch.setattr(saver_module, "COMMIT_PATIENCE", 10 * GRACE)
    found = Late(tmp_path)
    failpoints.set_hook("save.after-part", found.written.set)
    yield found
    failpoints.clear_hook("save.after-part")
    found.saves.end()


@pytest.mark.parametrize(
    ("kind", "last", "position", "waited"),
    [
        pytest.param(Kind.PERIODIC, Kind.PREEMPTED, HERE, 0, id="the same step"),
        pytest.param(Kind.PERIODIC, Kind.PREEMPTED, HERE, 30, id="it has waited long already"),
        pytest.param(Kind.PERIODIC, Kind.PREEMPTED, Position(1, "end", 0, 2), 0, id="the end of training"),
        pytest.param(Kind.PREEMPTED, Kind.DEADLINE, Position(0, "train", 2, 2), 0, id="a save that is owed"),
    ],
)
def test_a_save_in_flight_waits_no_longer_for_others_than_a_notice_leaves_time_to_write_alone(
    kind: Kind, last: Kind, position: Position, waited: float, late: Late
) -> None:
    late.in_flight(kind)
    late.pace._saving_since -= waited  # Which says nothing about how long it takes to write everything.
    late.notice()
    manifest = read_manifest(late.store, str(late.save(last, position).name))
    assert (manifest.step, manifest.writers, manifest.missing) == (position.step, (0,), (1,))
    assert len(list(Path(late.store.url).glob("step-*/*"))) == 1  # The attempt that was given up is gone.


def test_the_first_save_at_a_notice_waits_no_longer_for_the_one_in_flight(late: Late) -> None:
    late.in_flight(Kind.PERIODIC)
    late.notice()
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
    assert time.monotonic() < late.ends_at < math.inf
    assert saved.name is not None


def test_training_goes_on_while_a_save_is_written_and_at_most_one_is_in_flight() -> None:
    background, order, release = BackgroundSave(), [], threading.Event()

    def write(name: str, cancelled: Callable[[], bool]) -> Saved:
        assert release.wait(30)
        order.append(name)
        return Saved(name, 1.0)

    background.start(HERE, functools.partial(write, "first"))
    assert background.busy
    assert background.last is None
    threading.Timer(0.05, release.set).start()
    background.start(HERE, functools.partial(write, "second"))
    assert order[0] == "first"
    assert background.wait() == Saved("second", 1.0)
    assert order == ["first", "second"]
    assert background.position == HERE
    assert not background.busy


def test_an_error_in_the_background_is_raised_at_the_next_wait_and_only_once() -> None:
    background = BackgroundSave()
    background.start(HERE, mock.Mock(side_effect=MemoryError("no room")))
    with pytest.raises(MemoryError, match="no room"):
        background.wait()
    assert background.wait() is None


def test_a_save_that_is_cancelled_learns_of_it_and_the_next_one_does_not() -> None:
    background, seen = BackgroundSave(), []
    begun = threading.Event()

    def write(cancelled: Callable[[], bool]) -> Saved:
        begun.set()
        while not cancelled():
            threading.Event().wait(0.001)
        seen.append("cancelled")
        return Saved(None, 0.0)

    background.start(HERE, write)
    assert begun.wait(30)
    background.cancel()
    assert seen == ["cancelled"]
    background.start(HERE, lambda cancelled: Saved("not" if cancelled() else "saved", 0.0))
    saved = background.wait()
    assert saved is not None
    assert saved.name == "saved"


def test_an_interval_calls_again_and_again_until_it_is_stopped() -> None:
    called = threading.Semaphore(0)
    interval = Interval(0.001, called.release)
    assert called.acquire(timeout=30)
    assert called.acquire(timeout=30)
    interval.stop()
    assert not [t for t in threading.enumerate() if t.name == "keras_preempt-interval"]
    interval.stop()
