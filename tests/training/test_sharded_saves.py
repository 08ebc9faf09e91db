"""Saves of a model that is divided among workers, some of which are under notice or gone."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_preempt.agreement.alignment import Kind, Plan, Position
from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.boxes import Box, Piece, ShardedSpec
from keras_preempt.checkpoint.commit import read_manifest
from keras_preempt.checkpoint.reader import committed, load
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.report.events import EventLog
from keras_preempt.training import saver as saver_module
from keras_preempt.training.pace import Pace
from keras_preempt.training.saver import Content, Saved, Saver
from keras_preempt.training.saves import Saves
from keras_preempt.training.schedule import chosen
from tests.checkpoint.round_table import together

HERE = Position(0, "train", 1, 1)
VALUES = np.arange(12, dtype=np.float32).reshape(2, 6)
MEMBERS = 3


class Columns:
    """The state of a model with a bias and a kernel, of which two columns each lie on some of the workers."""

    def __init__(self, *holders: tuple[int, ...]) -> None:
        self._pieces = tuple(Piece((0, 2 * n), (2, 2 * n + 2), held) for n, held in enumerate(holders))

    def mirrored_signature(self) -> list[dict[str, Any]]:
        return [{"name": "bias", "dtype": "float32", "shape": (6,)}]

    def capture_mirrored(self, wanted: Iterable[str], **options: Any) -> dict[str, Array]:
        return {name: np.ones(6, np.float32) for name in wanted}

    def capture_local(self, **options: Any) -> dict[str, Array]:
        return {}

    def sharded_specs(self) -> list[ShardedSpec]:
        return [ShardedSpec("kernel", "float32", (2, 6), self._pieces)]

    def capture_boxes(self, boxes: Iterable[Box], *, copy: bool) -> dict[Box, Array]:
        return {box: VALUES[box.index] for box in boxes}


class Peers:
    """Knows from the start which workers are gone."""

    def __init__(self, gone: Iterable[int]) -> None:
        self.gone = frozenset(gone)

    def watched(self) -> Any:
        return contextlib.nullcontext()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    # Who waits for a worker that cannot come is found by `together`.
    monkeypatch.setattr(saver_module, "COMMIT_PATIENCE", 600.0)
    made = LocalStore(tmp_path)
    made.prepare()
    assert incarnations.claim(made, {}) == 1
    return made


def saves_of(store: LocalStore, model: Any, member: int, gone: Iterable[int], content: Content) -> Saves:
    session: Any = SimpleNamespace(resuming=False, restored_name="", capture=lambda position: content)
    peers: Any = Peers(gone)
    saver = Saver(store, model, member, MEMBERS, 1, Retention(9), EventLog(member), peers=peers)
    return Saves(session, saver, chosen(None), MEMBERS, Pace())


def save(
    store: LocalStore,
    plan: Plan,
    *holders: tuple[int, ...],
    gone: tuple[int, ...] = (),
    content: Content | None = None,
) -> list[Saved]:
    """Lets the workers that are not gone save at once; returns what came of each."""
    model, nothing = Columns(*holders), Content({}, {}, {}, {})

    def worker(member: int) -> Callable[[], Saved]:
        return lambda: saves_of(store, model, member, gone, content or nothing).at_once(plan, HERE)

    outcomes = together([worker(member) for member in range(MEMBERS) if member not in gone])
    assert all(isinstance(outcome, Saved) for outcome in outcomes), outcomes
    return outcomes


def kernel(store: LocalStore) -> Array:
    (info,) = committed(store)
    return load(store, info, 0, 1).tensors["kernel"]


def plan(writers: tuple[int, ...], doomed: tuple[int, ...]) -> Plan:
    return Plan(0, Kind.PREEMPTED, writers, doomed)


def test_each_piece_is_saved_once_and_a_worker_under_notice_writes_what_it_alone_holds(
    store: LocalStore,
) -> None:
    outcomes = save(store, plan((0, 1), (2,)), (0,), (1, 2), (2,))
    assert len({outcome.name for outcome in outcomes}) == 1
    assert outcomes[0].name is not None
    manifest = read_manifest(store, outcomes[0].name)
    assert (manifest.writers, manifest.holders, manifest.missing) == ((0, 1), (0, 1, 2), ())
    assert np.array_equal(kernel(store), VALUES)


def test_kept_values_of_pieces_are_written_in_the_place_of_the_present_ones(store: LocalStore) -> None:
    """As of before a validation that changes the weights."""
    boxes = {
        Box("kernel", "float32", (2, 6), (0, 2 * n), (2, 2 * n + 2)): np.full((2, 2), n, np.float32)
        for n in range(2)
    }
    save(store, plan((0, 1, 2), ()), (0,), (1, 2), (2,), content=Content({}, {}, {}, {}, boxes))
    assert np.array_equal(kernel(store)[:, :4], [[0, 0, 1, 1]] * 2)
    assert np.array_equal(kernel(store)[:, 4:], VALUES[:, 4:])


def test_pieces_of_a_worker_that_is_gone_are_written_by_others_that_hold_them(store: LocalStore) -> None:
    outcomes = save(store, plan((0, 1, 2), ()), (0,), (1, 2), (0, 1), gone=(1,))
    assert all(outcome.name is not None for outcome in outcomes)
    assert np.array_equal(kernel(store), VALUES)


def test_a_worker_under_notice_takes_over_for_another_one_that_died(store: LocalStore) -> None:
    """No writer has changed: all that are left come to the same plan."""
    outcomes = save(store, plan((0,), (1, 2)), (0,), (1, 2), (1, 2), gone=(1,))
    assert len({outcome.name for outcome in outcomes}) == 1
    assert outcomes[0].name is not None
    manifest = read_manifest(store, outcomes[0].name)
    assert (manifest.writers, manifest.holders, manifest.missing) == ((0,), (0, 2), (1,))
    assert np.array_equal(kernel(store), VALUES)


@pytest.mark.parametrize("doomed", [(), (2,)], ids=["healthy", "under notice"])
def test_the_save_fails_at_once_and_says_why_if_a_worker_that_alone_held_a_piece_is_gone(
    doomed: tuple[int, ...], store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    writers = tuple(member for member in range(MEMBERS) if member not in doomed)
    with caplog.at_level(logging.ERROR, "keras_preempt"):
        outcomes = save(store, plan(writers, doomed), (0,), (1, 2), (2,), gone=(2,))
    assert [outcome.name for outcome in outcomes] == [None, None]
    assert committed(store) == []
    said = [
        message for message in caplog.messages if "only worker(s) 2 held, such as kernel[0:2,4:6]" in message
    ]
    assert len(said) == 2
    assert all(
        "step 1 was NOT saved" in each and "the newest earlier checkpoint stays valid" in each
        for each in said
    )
    assert not list(Path(store.url).glob("step-*/*/*")), "nothing is left of the attempts"
