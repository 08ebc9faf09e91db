from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_preempt.agreement.messages import Position
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state.callbacks import CallbackStates
from keras_preempt.state.component import RestoreMoment, StoredState


class Speaking(keras.callbacks.Callback):
    """A user's callback that takes part."""

    def __init__(self, state: Any = None) -> None:
        super().__init__()
        self.state = state

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


class Silent(keras.callbacks.Callback):
    """A user's callback that has state which cannot be kept."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        SEEN.append(epoch)


SEEN: list[int] = []


def handed_over(old: list[keras.callbacks.Callback], new: list[keras.callbacks.Callback]) -> None:
    """Begins training with those of `new`; gives them the states of `old`, as they come out of a file."""
    for callback in new:
        callback.on_train_begin()
    values = WorkerValues()
    states = json.loads(json.dumps(CallbackStates(old).capture("epoch", values)))
    restore(CallbackStates(new), states, values.copied())


def restore(states: CallbackStates, fields: dict[str, Any], values: WorkerValues) -> None:
    saved = StoredState(Position(0, "epoch", 0, 0), fields, values, lambda way: True)
    states.restore(saved, RestoreMoment.EPOCH_BEGINS)


def test_early_stopping_goes_on_counting_and_keeps_its_best_weights(caplog: pytest.LogCaptureFixture) -> None:
    old = keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)
    old.on_train_begin()
    old.wait, old.best, old.best_epoch, old.stopped_epoch = 2, np.float32(0.25), 4, 0
    old.best_weights = [np.arange(3, dtype=np.float32), np.float64(2.0) * np.ones((2, 2))]
    new = keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)
    handed_over([old], [new])
    assert caplog.messages == []
    assert (new.wait, new.best, new.best_epoch, new.stopped_epoch) == (2, np.float32(0.25), 4, 0)
    assert type(new.best) is np.float32
    for mine, theirs in zip(new.best_weights, old.best_weights, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
    # One that has seen nothing yet, too.
    old, new = keras.callbacks.EarlyStopping(), keras.callbacks.EarlyStopping()
    old.on_train_begin()
    new.on_train_begin = lambda: vars(new).update(wait=7, best=1.0)
    handed_over([old], [new])
    assert new.wait == 0
    assert new.best == old.best


def test_history_is_complete() -> None:
    old, new = keras.callbacks.History(), keras.callbacks.History()
    old.on_train_begin()
    old.epoch, old.history = [0, 1], {"loss": [0.5, 0.1 + 0.2], "val_loss": [float("nan"), 1.0]}
    handed_over([old], [new])
    assert new.epoch == [0, 1]
    assert json.dumps(new.history) == json.dumps(old.history)
    new.epoch.append(2)  # goes on


def test_callbacks_of_the_users_speak_for_themselves_and_those_of_one_class_are_told_apart_by_order() -> None:
    new = [Speaking(), Silent(), Speaking(), Speaking()]
    own = {"seen": 3, "mean": np.ones(2), (1, 2): None}
    handed_over([Speaking("a"), Speaking(own), Silent(), Speaking("c")], new)
    first, second, third = (callback.state for callback in new if isinstance(callback, Speaking))
    assert (first, second["seen"], second[(1, 2)], third) == ("a", 3, None, "c")
    np.testing.assert_array_equal(second["mean"], np.ones(2))


def test_a_callback_that_keeps_what_is_no_plain_data_is_named() -> None:
    with pytest.raises(TypeError, match=r"callbacks/Speaking/model.*get_state"):
        CallbackStates([Speaking({"model": object()})]).capture("epoch", WorkerValues())


class Counting(Silent, keras.callbacks.EarlyStopping):
    pass


class Scheduled(Silent, keras.callbacks.LearningRateScheduler):
    pass


def test_callbacks_whose_state_is_lost_are_named_and_others_are_not() -> None:
    of_keras, same_rate = keras.callbacks, lambda epoch, rate: rate
    kept = [
        *(Speaking(), of_keras.EarlyStopping(), of_keras.TerminateOnNaN(), of_keras.ProgbarLogger()),
        *(of_keras.LearningRateScheduler(same_rate), of_keras.History()),
        of_keras.CSVLogger("log.csv"),
    ]
    kept.append(of_keras.LambdaCallback())
    lost = [Silent(), Counting(), Scheduled(same_rate)]
    what = "the variable SEEN outside of it"
    assert CallbackStates([*kept, *lost]).unsaved == [
        f"{name} ({what})" for name in ("Silent", "Counting", "Scheduled")
    ]


def test_what_does_not_match_is_told_and_the_rest_is_restored(caplog: pytest.LogCaptureFixture) -> None:
    old, new = keras.callbacks.ReduceLROnPlateau(), keras.callbacks.ReduceLROnPlateau()
    old.on_train_begin()
    old.wait, old.best, old.cooldown_counter = 5, 0.125, 2
    handed_over([old, Speaking(1)], [new, keras.callbacks.History()])
    assert (new.wait, new.best, new.cooldown_counter) == (5, 0.125, 2)
    first, second = caplog.messages
    assert "Speaking is in the checkpoint" in first
    assert "History is in this fit" in second


def test_what_was_handed_over_is_not_shared_with_the_checkpoint() -> None:
    # The states are handed over twice, before and after the other callbacks begin the epoch.
    old, new = Speaking({"seen": [1], "mean": np.zeros(2)}), Speaking()
    values = WorkerValues()
    states = CallbackStates([old]).capture("epoch", values)
    old.state["mean"] += 1  # Training goes on while a save is written.
    receiver = CallbackStates([new])
    restore(receiver, states, values)
    new.state["seen"].append(2)
    new.state["mean"] += 5
    restore(receiver, states, values)
    assert new.state["seen"] == old.state["seen"] == [1]
    assert new.state["mean"].tolist() == [0, 0]


def test_a_checkpoint_sets_nothing_but_what_is_a_callbacks_state() -> None:
    """Such as the path of a file that a callback writes to."""
    stopping = keras.callbacks.EarlyStopping()
    states = CallbackStates([stopping]).capture("epoch", WorkerValues())
    states["callbacks"]["EarlyStopping"].update(
        monitor="x", filepath="/etc/passwd", on_epoch_end=None, wait=4
    )
    restore(CallbackStates([stopping]), states, WorkerValues())
    assert stopping.wait == 4
    assert stopping.monitor == "val_loss"
    assert callable(stopping.on_epoch_end)
    assert not hasattr(stopping, "filepath")


@pytest.mark.parametrize(
    ("rows", "append", "warned"), [("a,b\n", True, True), ("", True, False), ("a,b\n", False, False)]
)
def test_rows_that_will_come_twice_are_named(
    rows: str, append: bool, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(rows)
    CallbackStates([keras.callbacks.CSVLogger(path, append=append)]).begin_again_without_state()
    assert ("come a second time" in caplog.text) == warned
