from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.layout import attempt_name
from keras_preempt.checkpoint.partition import TensorSpec, partition
from keras_preempt.checkpoint.reader import committed
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.report import progress
from keras_preempt.report.events import EventLog
from keras_preempt.training.saver import Prepared, Saver
from tests.checkpoint.campaign_store import MemoryStore

LOG = "keras_preempt"


def prepared(round: int) -> Prepared:
    kernel = np.full((2, 3), round, np.float32)
    specs = [TensorSpec("kernel", "float32", (2, 3))]
    share = [(piece, kernel) for piece in partition(specs, 1)[0]]
    attempt = Attempt(
        step=round,
        name=attempt_name(1, round),
        position={"batch": round},
        kind="periodic",
        members=1,
        writers=(0,),
        specs=specs,
    )
    return Prepared(attempt, share, {}, {})


def saver(store: Store, retention: Retention) -> Saver:
    assert incarnations.claim(store, {}) == 1
    model: Any = None  # only what is prepared here is written
    return Saver(store, model, 0, 1, 1, retention, EventLog(0))


def test_superseded_checkpoints_are_removed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    saves = saver(store, Retention(1, keep_every=10))
    with caplog.at_level(logging.INFO, LOG):
        names = [saves.write(prepared(round)).name for round in range(3)]
    assert [info.directory for info in committed(store)] == [names[2], names[0]]
    assert f"Removed {names[1]}: superseded" in caplog.text


def test_a_save_succeeds_although_older_checkpoints_cannot_be_removed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(name: str) -> None:
        raise StoreUnavailable("403 no permission to delete")

    store = MemoryStore()
    saves = saver(store, Retention(1))
    monkeypatch.setattr(store, "delete", denied)
    saved = [saves.write(prepared(round)) for round in range(2)]
    assert [info.directory for info in committed(store)] == [saved[1].name, saved[0].name]
    assert "The checkpoint is saved, but older ones could not be removed: 403 no permission" in caplog.text
    assert "NOT saved" not in caplog.text


def test_a_save_that_training_waits_for_shows_how_far_it_is_and_one_in_the_background_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    store = LocalStore(tmp_path)
    store.prepare()
    saves = saver(store, Retention(9))
    with caplog.at_level(logging.INFO, LOG):
        assert saves.write(replace(prepared(0), background=True)).name is not None
        assert caplog.messages == []
        name = saves.write(prepared(1)).name
    assert caplog.messages[0].startswith(f"Saving {name}: 0.0 of 0.0 MiB in 0 s")
