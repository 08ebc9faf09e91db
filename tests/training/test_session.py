"""What a fit restores first, and what it holds while it trains."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from tests import preempted
from tests.preempted import X, Y


def data(samples: int, seed: int, drawn: Any = lambda: None) -> tf.data.Dataset:
    """Batches that are replayed; `drawn` is called for each sample."""

    def noted(x: Any, y: Any) -> Any:
        drawn()
        return x, y

    pairs = tf.data.Dataset.from_tensor_slices((X[:samples], Y[:samples])).shuffle(samples, seed=seed)
    noting = pairs.map(lambda x, y: tf.numpy_function(noted, (x, y), (tf.float32, tf.float32)))
    shaped = noting.map(lambda x, y: (tf.ensure_shape(x, [4]), tf.ensure_shape(y, [1])))
    return shaped.batch(4)


def start(
    folder: Path, dataset: tf.data.Dataset, strike: Any = None, *callbacks: keras.callbacks.Callback
) -> Any:
    given = {"x": dataset, "y": None, "batch_size": None, "shuffle": False}
    return preempted.start(folder / "run", lambda: callbacks, strike, **given)


def test_other_shuffles_are_told_before_the_input_is_drawn_again_also_if_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def filtered(samples: int, seed: int) -> tf.data.Dataset:
        return data(samples, seed).filter(lambda x, y: True)  # Nobody knows how many batches there are.

    assert start(tmp_path, filtered(24, 1), ("on_train_batch_begin", 4)) is None
    with pytest.raises(ValueError, match="at least 5 batches"):
        start(tmp_path, filtered(8, 2))
    assert "the shuffles of the data, or their seeds, differ from those of the checkpoint" in caplog.text


def test_files_of_callbacks_are_back_before_the_input_is_drawn_again(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    there: list[bool] = []
    saved = ""

    def drawn() -> None:
        there.append(rows.exists() and rows.read_text() == saved)

    first = keras.callbacks.CSVLogger(rows)
    assert start(tmp_path, data(24, 1), ("on_train_batch_begin", 10), first) is None
    first.csv_file.close()
    saved = rows.read_text()
    rows.unlink()
    assert start(tmp_path, data(24, 1, drawn), None, keras.callbacks.CSVLogger(rows)) is not None
    assert saved.count("\n") == 2  # A header, and one epoch.
    assert there[0]


class Helper:
    def update(self) -> None:
        self.count = 1


class Holder:
    def __init__(self) -> None:
        self.helper = Helper()


class Replaces(keras.callbacks.Callback):
    """Replaces an object that its code uses, after the first epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.holder = Holder()
        self.first = weakref.ref(self.holder.helper)
        self.gone: bool | None = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.holder.helper.update()
        if epoch == 1:
            self.holder.helper = Helper()
            self.gone = self.first() is None


def test_what_a_callback_drops_while_it_trains_is_not_held(tmp_path: Path) -> None:
    ended = preempted.start(tmp_path, lambda: [Replaces()], what=lambda callback: callback.gone)
    assert ended is not None
    assert ended.what
