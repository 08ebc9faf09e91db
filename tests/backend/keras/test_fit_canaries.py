"""Every private name of Keras behind "The running fit" still exists and still means what is relied upon.

A failure here says what a new Keras has changed, before any training is resumed wrongly.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.random import seed_generator

from keras_preempt.backend.keras import callbacks, model_parts
from keras_preempt.backend.keras import running_fit as keras_fit
from keras_preempt.backend.keras.model_parts import steps_done
from keras_preempt.backend.keras.names import KerasInternalsError
from keras_preempt.backend.tensorflow import repairs
from keras_preempt.backend.tensorflow.backend import BACKEND
from keras_preempt.backend.tensorflow.feed import DatasetFeed
from tests.backend.changed import keras_changed as _changed
from tests.fits import untuned

SAMPLES = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
DATA = untuned(tf.data.Dataset.from_tensor_slices(SAMPLES).batch(2))


def new_model(**arguments: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    # tensorflow-tpu has no compiler for CPUs.
    model.compile("adam", "mse", **{"jit_compile": False, **arguments})
    return model


def fit(
    hook: str, look: Callable[[keras.Model], Any], **arguments: Any
) -> tuple[keras.callbacks.History, list[Any]]:
    """Calls a function in a hook of a fit; returns the history and what the function has returned."""
    model, found = new_model(), list[Any]()
    looking = keras.callbacks.LambdaCallback(**{hook: lambda *_, **__: found.append(look(model))})
    history = model.fit(DATA, verbose=0, shuffle=False, callbacks=[looking], **arguments)
    assert found, _changed(f"fit does not call {hook}")
    return history, found


def new_iterator(data: Any = DATA, steps_per_epoch: int | None = None) -> Any:
    return TFEpochIterator(
        x=data, distribute_strategy=tf.distribute.get_strategy(), steps_per_epoch=steps_per_epoch
    )


@pytest.mark.parametrize("name", keras_fit._FIT_LOCALS)
def test_fit_holds_this_in_a_local_variable_while_it_calls_its_callbacks(name: str) -> None:
    variables = inspect.unwrap(keras.Model.fit).__code__.co_varnames
    assert name in variables, _changed(f"fit has no local variable {name!r} any more")


def test_the_running_fit_is_found_from_its_first_callback_and_refused_if_it_is_another_or_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = new_model()

    def look(model: keras.Model) -> Any:
        with pytest.raises(RuntimeError, match=r"called by model\.fit"):
            BACKEND.running_fit(other)
        with monkeypatch.context() as patch:
            patch.setattr(keras_fit, "_FIT_LOCALS", (*keras_fit._FIT_LOCALS, "moved_elsewhere"))
            with pytest.raises(KerasInternalsError, match="moved_elsewhere"):
                BACKEND.running_fit(model)
        return BACKEND.running_fit(model)

    _, (found,) = fit("on_train_begin", look, epochs=3, initial_epoch=1)
    assert (found.epochs, found.initial_epoch) == (3, 1), _changed(
        "fit's epochs, initial_epoch mean something else"
    )
    assert isinstance(found.feed, DatasetFeed)


def test_fit_calls_the_callbacks_of_the_list_that_its_container_has_then() -> None:
    def take(logs: Any = None) -> None:
        others = BACKEND.running_fit(model).take_callbacks(first, last)
        assert [type(other) for other in others] == [keras.callbacks.History], _changed(
            f"fit's container has other callbacks: {others}"
        )

    ended: list[int] = []
    first = keras.callbacks.LambdaCallback(on_train_begin=take)
    last = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ended.append(epoch))
    model = new_model()
    model.fit(DATA, verbose=0, shuffle=False, callbacks=[first])
    assert ended == [0], _changed("CallbackList.callbacks is no longer what it calls at each event")


def test_the_model_begins_at_its_initial_epoch_and_keeps_to_it() -> None:
    assert new_model()._initial_epoch is None, _changed("Trainer._initial_epoch is not None before a fit")

    def start(model: keras.Model) -> None:
        found = BACKEND.running_fit(model)
        found.start_at(2)
        found.start_at(3)
        found.forget_start()
        assert model._initial_epoch is None
        found.start_at(2)

    history, _ = fit("on_train_begin", start, epochs=4)
    assert history.epoch == [2, 3], _changed("fit no longer begins at Trainer._initial_epoch")


def test_the_logs_of_an_epoch_without_steps_are_looked_up_on_the_model() -> None:
    def empty(model: keras.Model) -> None:
        found = BACKEND.running_fit(model)
        found.feed.shorten_next_epoch(None)
        found.logs_of_an_epoch_without_steps({"mine": 12.5}, of_step=True)

    history, _ = fit("on_train_begin", empty, epochs=2)
    assert history.history["mine"] == [12.5], _changed(
        "fit no longer takes an epoch's logs from self._get_metrics_result_or_logs(logs)"
    )
    assert len(history.history["loss"]) == 1  # of the second epoch, which has steps


@pytest.mark.parametrize("name", DatasetFeed.NEEDS)
def test_epoch_iterators_have(name: str) -> None:
    assert hasattr(new_iterator(), name), _changed(f"TFEpochIterator.{name} is gone")


def test_epoch_iterators_look_up_their_steps_on_the_instance() -> None:
    iterator = new_iterator()
    iterator._enumerate_iterator = lambda: iter([(7, "mine")])
    assert list(iterator) == [(7, "mine")], _changed(
        "TFEpochIterator no longer calls self._enumerate_iterator() for each epoch"
    )


@pytest.mark.parametrize(
    ("data", "steps_per_epoch", "made"),
    [(DATA, None, [1, 2, 3, 4]), (DATA.repeat(), 3, [1, 1]), (DATA.filter(lambda x, y: True), None, [1, 2])],
    ids=["known length", "endless", "unknown length"],
)
def test_epoch_iterators_make_as_many_iterators_as_they_did(
    data: Any, steps_per_epoch: int | None, made: list[int]
) -> None:
    iterator = new_iterator(data, steps_per_epoch)
    iterator.reset()
    feed = DatasetFeed(iterator)
    found: list[int] = []
    with contextlib.nullcontext() if made != [1, 2] else pytest.warns(UserWarning, match="ran out"):
        for _ in range(2):
            with iterator.catch_stop_iteration():
                for step, *_, live in iterator:
                    if step == 0:
                        found.append(feed.iterators)
                    next(live)
            found.append(feed.iterators)
    assert sorted(set(found)) == sorted(set(made)), _changed(
        f"TFEpochIterator makes other iterators: {found}"
    )


def test_epoch_iterators_know_their_dataset_its_length_and_what_they_have_handed_out() -> None:
    iterator = new_iterator()
    assert iterator._distributed_dataset.element_spec == DATA.element_spec, _changed(
        "TFEpochIterator._distributed_dataset is not the dataset of the strategy"
    )
    assert iterator._num_batches == 4, _changed("TFEpochIterator._num_batches is not the number of batches")
    assert new_iterator(DATA.repeat(), 3)._num_batches is None
    iterator.reset()
    seen = [iterator._steps_seen for _ in iterator]
    assert seen == [1, 2, 3, 4], _changed(f"TFEpochIterator._steps_seen counts differently: {seen}")
    assert isinstance(DatasetFeed(iterator).undistributed, tf.data.Dataset), _changed(
        "the data adapter no longer keeps a tf.data dataset in _dataset"
    )


def test_the_validation_of_a_fit_has_its_own_epoch_iterator() -> None:
    _, found = fit("on_test_begin", keras_fit.evaluation_iterator, validation_data=DATA, epochs=2)
    assert isinstance(found[0], TFEpochIterator), _changed("Trainer._eval_epoch_iterator is gone")
    assert found[0] is found[1], _changed(
        "Trainer._eval_epoch_iterator is no longer kept between validations"
    )
    assert keras_fit.evaluation_iterator(new_model()) is None


def test_keras_builds_before_each_evaluation_only_under_a_strategy() -> None:
    assert not keras_fit.builds_before_evaluating(new_model())
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        model = new_model()
    assert keras_fit.builds_before_evaluating(model), _changed(
        "Trainer._distribute_strategy is no longer set under a strategy"
    )
    source = inspect.getsource(repairs.SYMBOLIC_BUILD.find())
    assert "self._distribute_strategy is None" in source, _changed(
        "_maybe_symbolic_build no longer depends on self._distribute_strategy"
    )


def test_the_optimizer_counts_every_step() -> None:
    model = new_model(steps_per_execution=3)
    assert hasattr(model.optimizer, "_iterations"), _changed("Optimizer._iterations is gone")
    model.fit(DATA, verbose=0, shuffle=False)
    assert steps_done(model) == 4, _changed("Optimizer._iterations no longer counts single steps")


def test_all_layers_of_a_model_are_found() -> None:
    class Nested(keras.Model):
        def __init__(self, **options: str) -> None:
            super().__init__(**options)
            self.inner = keras.Sequential([keras.layers.Dense(1, name="innermost")], name="inner")

    found = [layer.name for layer in model_parts.layers_of(Nested(name="outer"))]
    assert sorted(found) == ["inner", "innermost", "outer"], _changed(
        "Layer._flatten_layers finds other layers"
    )


def test_the_global_seed_is_kept_under_its_name() -> None:
    kept = global_state.get_global_attribute("global_seed_generator")
    try:
        global_state.set_global_attribute("global_seed_generator", None)
        assert model_parts.global_seed_state() is None
        keras.random.uniform((1,))
        state = model_parts.global_seed_state()
        assert state is not None, _changed(
            "Keras keeps its global seed elsewhere than in 'global_seed_generator'"
        )
        assert state is seed_generator.global_seed_generator().state
        before = np.array(state)
        keras.random.uniform((1,))
        assert not np.array_equal(before, np.array(state)), _changed(
            "the global seed's state no longer advances"
        )
    finally:
        global_state.set_global_attribute("global_seed_generator", kept)


def test_the_state_of_a_seed_can_be_told_by_its_name() -> None:
    layer = keras.layers.Dropout(0.5, seed=1)
    layer.build((None, 3))
    states = [variable for variable in layer.variables if model_parts.is_seed_state(variable)]
    assert len(states) == 1, _changed(f"seed states have another name: {[v.name for v in layer.variables]}")


@pytest.mark.parametrize("kind", callbacks.CALLBACK_STATE, ids=lambda kind: kind.__name__)
def test_keras_own_callbacks_keep_their_state_where_they_did(kind: type, tmp_path: Path) -> None:
    needed = {
        keras.callbacks.ModelCheckpoint: ["best.keras"],
        keras.callbacks.CSVLogger: ["log.csv"],
        keras.callbacks.TensorBoard: ["board"],
    }
    callback = kind(*(str(tmp_path / name) for name in needed.get(kind, [])))
    callback.set_model(new_model())
    callback.on_train_begin()
    if kind is keras.callbacks.EarlyStopping:
        callback.on_epoch_end(0, {"val_loss": 1.0})
    for name in callbacks.CALLBACK_STATE[kind]:
        assert hasattr(callback, name), _changed(f"{kind.__name__}.{name} is gone")
    callback.on_train_end()  # Closes what it has opened.


def tensorboard(folder: Path, update_freq: Any) -> keras.callbacks.TensorBoard:
    board = keras.callbacks.TensorBoard(str(folder), write_graph=False, update_freq=update_freq)
    board.set_model(new_model())
    return board


def test_points_that_tensorboard_holds_back_can_be_written_out_and_others_added(tmp_path: Path) -> None:
    board = tensorboard(tmp_path, "batch")
    writer = callbacks.train_summaries(board)
    board.on_train_begin()
    assert callbacks.train_summaries(board) is writer, _changed("TensorBoard makes its writer anew")
    board.on_train_batch_begin(0)
    board.on_train_batch_end(0, {"loss": 1.0})
    (path,) = tmp_path.glob("train/events.out.tfevents.*")
    before = path.stat().st_size
    callbacks.flush_summaries(board)
    written = path.stat().st_size
    assert written > before, _changed("TensorBoard keeps its writers elsewhere")
    with writer.as_default():
        tf.summary.scalar("point", 1.0, step=1)
    writer.flush()
    assert path.stat().st_size > written, _changed("TensorBoard has another writer for its training curves")
    board.on_train_end()


@pytest.mark.parametrize(("batch", "due"), [(3, False), (4, True)])
def test_tensorboard_takes_up_the_batch_that_it_stands_at(tmp_path: Path, batch: int, due: bool) -> None:
    board = tensorboard(tmp_path, 2)
    board.on_train_begin()
    board._global_train_batch = batch
    callbacks.take_up_step(board)
    assert bool(tf.summary.should_record_summaries()) == due, _changed(
        "TensorBoard pushes its writers otherwise"
    )
    board.on_train_end()


def test_the_progress_bar_of_a_fit_tells_when_it_was_drawn() -> None:
    """A bar is there from the first batch of an epoch until all callbacks have ended the epoch."""
    drawn: list[bool] = []

    class Looks(keras.callbacks.Callback):
        bar: callbacks.ProgressBar

        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            others = BACKEND.running_fit(self.model).take_callbacks(self, keras.callbacks.Callback())
            self.bar = callbacks.ProgressBar(others)
            drawn.append(self.bar.drawn_at() > 0)

        def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
            drawn.append(self.bar.drawn_at() > 0)

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            drawn.append(self.bar.drawn_at() > 0)
            self.bar.ended()
            drawn.append(self.bar.drawn_at() > 0)

    new_model().fit(DATA.take(2), verbose=1, shuffle=False, callbacks=[Looks()])
    # As it begins, before both batches, before it ends, and after.
    assert drawn == [False, False, True, True, False]
