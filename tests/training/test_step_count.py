"""A step is a batch that fit has trained on, whatever an optimizer counts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from keras_preempt.checkpoint.layout import MANIFEST
from keras_preempt.training.save.step_count import StepCount
from tests import preempted
from tests.cluster.small_fit import Then, await_
from tests.fits import Stateless


class Seldom(keras.Sequential):
    """Adds gradients up, and applies them after every fifth batch: its optimizer counts one step for five."""

    def build(self, input_shape: Any = None) -> None:
        super().build(input_shape)
        zeros = {"initializer": "zeros", "trainable": False}
        self.seen = self.add_weight(name="seen", shape=(), dtype="int32", **zeros)
        self.sums = [
            self.add_weight(name=f"sum{number}", shape=each.shape, **zeros)
            for number, each in enumerate(self.trainable_variables)
        ]

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(self(x, training=True) - y))
        self.seen.assign_add(1)
        for total, gradient in zip(self.sums, tape.gradient(loss, self.trainable_variables), strict=True):
            total.assign_add(gradient)

        def apply() -> int:
            self.optimizer.apply([each.value for each in self.sums], self.trainable_variables)
            for each in self.sums:
                each.assign(keras.ops.zeros_like(each))
            return 0

        tf.cond(self.seen % 5 == 0, apply, lambda: 0)
        return {"loss": loss}


class Often(keras.Sequential):
    """Takes two steps of its optimizer for each batch."""

    def train_step(self, data: Any) -> Any:
        super().train_step(data)
        return super().train_step(data)


class CountsAnew(Stateless):
    """Sets the optimizer's count of steps back, as a schedule that restarts may."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.optimizer.iterations.assign(0)


def saved(directory: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in directory.glob("step-*"))


@pytest.mark.parametrize("kind", [Seldom, Often])
def test_checkpoints_are_made_told_and_continued_by_batches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: type[keras.Sequential]
) -> None:
    # The fourth batch of the second epoch is the tenth of training: the optimizer has counted two steps, or twenty.
    preempted.assert_exact(tmp_path, list, ("on_train_batch_begin", 9), ("on_test_begin", 0), kind=kind)
    saves = [re.findall(r"step-(\d+)", each)[0] for each in caplog.messages if each.startswith("Saved ")]
    assert [int(each) for each in saves] == [10, 12]
    assert saved(tmp_path / "run")[-1] == 18


def test_a_count_of_the_optimizer_that_is_set_back_sets_no_checkpoint_back(tmp_path: Path) -> None:
    preempted.assert_exact(tmp_path, lambda: [CountsAnew()], ("on_train_batch_begin", 8))
    assert saved(tmp_path / "run") == [9, 18]


def test_save_every_is_a_number_of_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_PREEMPT_SAVE_EVERY", "4")

    def committed(step: int) -> Then:  # A save that cannot be awaited gives way to the next one.
        return Then(divmod(step, 6), lambda: await_(lambda: [*tmp_path.glob(f"step-{step:08}/*/{MANIFEST}")]))

    preempted.start(tmp_path, lambda: [committed(4), committed(8)], ("on_train_batch_begin", 9), kind=Seldom)
    assert saved(tmp_path) == [4, 8, 10]  # Nobody tidies up between a notice and the exit.


@pytest.mark.parametrize("said", [[0, 3], [2, 5]])  # The first or the last step of an execution.
def test_executions_of_several_steps_are_counted_whole_and_the_last_one_to_its_end(said: list[int]) -> None:
    count = StepCount(7, per_execution=3, in_epoch=5)
    assert count.done == 7
    count.ended.append(said[0])
    assert (count.done, count.before(3)) == (10, 10)
    count.ended.append(said[1])
    assert count.done == 12
    count.epoch_is_over()
    assert (count.done, count.before(3)) == (12, 15)
    count.continue_at(100, 4)
    assert (count.done, count.before(4)) == (100, 100)
    count.ended.append(4)
    assert count.done == 101
