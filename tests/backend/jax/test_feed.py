"""The iterators of a fit on JAX: made at their first draw, counted, and continued from where training stood."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras.src.backend.jax.trainer import JAXEpochIterator

from keras_preempt.backend import pipelines
from keras_preempt.backend.jax.backend import BACKEND
from keras_preempt.backend.jax.feed import JaxFeed, LiveIterator, OnFirstDraw
from tests.state.continued_input import captured_input

SAMPLES, BATCH = 45, 10
X = np.arange(SAMPLES * 2).reshape(SAMPLES, 2).astype("float32")
Y = np.arange(SAMPLES)


class Data(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return X[index : index + 1], Y[index : index + 1]


def generator() -> Iterator[Any]:
    while True:
        yield X[:BATCH], Y[:BATCH]


def source(x: Any = None, **options: Any) -> Any:
    """Of arrays, unless other data is given, which has batches of its own."""
    arrays = {"x": X, "y": Y, "batch_size": BATCH, "shuffle": True}
    return JAXEpochIterator(**{**(arrays if x is None else {"x": x}), **options})


def resumed(of: Any, position: Any, order: Any, batch: int) -> None:
    """Has the next epoch continue with a batch."""
    feed = JaxFeed(of)
    feed.stub = lambda: _stubs.append(1)
    feed.resume(position, feed.new_at(batch, order), batch=batch)


_stubs: list[int] = []
"""One for a step that draws nothing, as `running_fit.JaxFit.stub` makes it."""


def epoch(of: Any, batches: int | None = None) -> list[Any]:
    """What Keras draws in one epoch, or in its first batches."""
    found: list[Any] = []
    with of.catch_stop_iteration():
        for *_, iterator in of:
            if _stubs:
                _stubs.clear()
                continue
            if batches is not None and len(found) == batches:
                break
            leaves = keras.tree.flatten(next(iterator))
            found.append([np.asarray(leaf).tolist() for leaf in leaves if leaf is not None])
    return found


@pytest.mark.parametrize("steps", [None, 3])
def test_an_iterator_is_made_when_it_is_first_drawn_from(steps: int | None) -> None:
    of = source(steps_per_epoch=steps)
    feed = JaxFeed(of)
    handed = [iter(feed) for _ in range(3)][-1]  # The others are never drawn from, and do not count.
    assert isinstance(handed, OnFirstDraw)
    assert (handed.live, feed.iterators, feed.live, feed.draws) == (None, 0, None, [])
    next(handed)
    assert (handed.live, feed.iterators) == (feed.live, 1)
    assert isinstance(feed.live, LiveIterator)
    next(handed)
    assert feed.iterators == 1


@pytest.mark.parametrize("shuffle", [True, "batch", False])
@pytest.mark.parametrize("stopped", [1, 3, 4])
def test_the_next_epoch_begins_at_a_position_with_the_batches_of_then_and_the_one_after_has_its_own_order(
    shuffle: Any, stopped: int
) -> None:
    keras.utils.set_random_seed(4)
    of = source(shuffle=shuffle)
    whole, after = epoch(of), epoch(of)
    following = np.random.rand()
    assert (whole == after) == (not shuffle)

    keras.utils.set_random_seed(4)
    of = source(shuffle=shuffle)
    first = JaxFeed(of)
    assert epoch(of, stopped) == whole[:stopped]
    position, order = first.position(pending=True), first.order
    present = np.random.get_state()
    assert position["batches"] == stopped

    np.random.seed(99)
    again = source(shuffle=shuffle)
    np.random.set_state(present)
    resumed(again, position, order, stopped)
    assert [epoch(again), epoch(again)] == [whole[stopped:], after]
    assert np.random.rand() == following


@pytest.mark.parametrize("inside", [True, False])
def test_an_order_is_state_as_long_as_its_epoch_lasts(inside: bool) -> None:
    """A run that was preempted in the validation after it has none, and is as good."""
    of = source(shuffle=True)
    feed = JaxFeed(of)
    epoch(of, 2 if inside else None)
    arrays: dict[str, Any] = {}
    captured = captured_input(feed, arrays, inside=inside)
    assert feed.order is not None
    assert ("order" in captured, bool(arrays)) == (inside, inside)


def test_where_an_epoch_has_steps_its_iterator_goes_on() -> None:
    of = source(generator(), steps_per_epoch=3)
    feed = JaxFeed(of)
    assert not feed.goes_on, "nothing was drawn yet"
    epoch(of)
    assert feed.goes_on
    assert feed.position(pending=False)["current"]
    epoch(of)
    assert feed.iterators == 1
    assert feed.draws == [6]


def test_where_an_epoch_is_all_of_the_data_each_has_an_iterator() -> None:
    of = source()
    feed = JaxFeed(of)
    for _ in range(2):
        epoch(of)
    assert not feed.goes_on
    assert feed.iterators == 2
    assert feed.draws == [5, 5]
    position = feed.position(pending=False)
    assert (position["current"], position["batches"]) == (False, 5)


def test_a_pending_step_has_made_its_iterator() -> None:
    of = source()
    feed = JaxFeed(of)
    for *_, iterator in of:
        assert iterator.live is None
        feed.position(pending=True)
        assert iterator.live is not None
        break
    assert feed.iterators == 1


@pytest.mark.parametrize(
    ("options", "indexed", "length", "partial"),
    [
        ({}, True, 5, 5),
        ({"x": Data(), "shuffle": True}, False, 5, None),
        ({"x": generator(), "steps_per_epoch": 2}, False, None, None),
    ],
    ids=["arrays", "PyDataset", "generator"],
)
def test_what_the_data_is_can_be_told(options: Any, indexed: bool, length: Any, partial: Any) -> None:
    feed = JaxFeed(source(**options))
    assert (feed.is_indexed, feed.length, feed.last_batch) == (indexed, length, partial)
    assert not feed.is_shared
    assert feed.undistributed is None
    assert feed.pipelines == []
    assert feed.order is None


def test_a_sample_is_told_by_its_types_and_shapes_alone() -> None:
    one, other = JaxFeed(source()), JaxFeed(source(batch_size=7))
    assert one.sample == other.sample == "[('float32', [2]), ('int64', [])]"


def test_the_batch_of_one_process_is_the_batch_of_all() -> None:
    assert JaxFeed(source()).global_batch == BATCH
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    assert JaxFeed(source()).global_batch == BATCH


def test_a_tf_dataset_is_a_pipeline_whose_iterator_can_be_put_at_a_position() -> None:
    tf = pytest.importorskip("tensorflow")

    data = tf.data.Dataset.range(6).batch(1)
    of = source(data)
    feed = JaxFeed(of)
    assert feed.dataset is data
    assert feed.undistributed is data
    assert feed.pipelines
    assert not feed.is_indexed
    assert epoch(of, 2) == [[[0]], [[1]]]
    state = pipelines.iterator_state(feed.live)
    assert state is not None
    again = JaxFeed(source(data))
    live = again.new()
    pipelines.restore_iterator(live, state)
    assert np.asarray(keras.tree.flatten(next(live))[0]).tolist() == [2]


# -- A fit whose epoch has no steps left ---------------------------------------------------------------------


class Skips(keras.callbacks.Callback):
    """Has the first epoch run none of its steps, as after a save at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []
        self.values: list[bytes] = []

    def on_train_begin(self, logs: Any = None) -> None:
        fit = BACKEND.running_fit(self.model)
        fit.feed.shorten_next_epoch(None)
        fit.logs_of_an_epoch_without_steps({"mine": 12.5}, of_step=True)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begun.append(batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 0:
            assert self.begun == [], "no callback is told of a step that is none"
            assert logs == {"mine": 12.5}
            self.values = values(self.model)


def values(model: keras.Model) -> list[bytes]:
    variables = (*model.variables, model.optimizer.iterations)
    return [np.asarray(variable.value).tobytes() for variable in variables]


# Of Keras on JAX 0.12, which it asks for what NumPy makes of whole numbers.
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64:UserWarning")
def test_an_epoch_without_steps_changes_nothing_and_has_its_logs_and_the_next_one_has_all_steps() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    before, skips = values(model), Skips()
    history = model.fit(X, Y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[skips])
    assert skips.values == before
    assert history.history["mine"] == [12.5]
    assert len(history.history["loss"]) == 1, "of the second epoch"
    assert skips.begun == [0, 1, 2, 3, 4]
    assert int(model.optimizer.iterations.value) == 5
    assert "on_train_batch_begin" not in vars(skips)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_no_batch_is_drawn_ahead_of_training(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras itself draws one ahead, or two, on CPUs too before Keras 3.15."""
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    drawn: list[int] = []

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for number in range(5):
            drawn.append(number)
            yield np.ones((2, 3), "float32"), np.ones((2, 1), "float32")

    of = JAXEpochIterator(x=batches(), steps_per_epoch=5)
    JaxFeed(of)
    counts = []
    for *_, iterator in of:
        next(iterator)
        counts.append(len(drawn))
    assert counts == [2, 2, 3, 4, 5], "Keras itself looks at two before the first step"
