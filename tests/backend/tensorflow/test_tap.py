"""What a strategy distributes comes unchanged through a tap, whose state can be saved while the strategy draws."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.data.ops import map_op

from keras_preempt.backend.tensorflow import datasets, reshuffling
from keras_preempt.backend.tensorflow import tap as taps
from keras_preempt.backend.tensorflow.tap import Tap, tap_of
from tests.backend.changed import tensorflow_changed as _changed

PIPELINES: dict[str, Callable[[], tf.data.Dataset]] = {
    "shuffled": lambda: tf.data.Dataset.range(21).shuffle(9, seed=3).batch(4).prefetch(2),
    "ragged": lambda: (
        tf.data.Dataset.range(9)
        .map(lambda n: {"words": tf.ragged.range(tf.stack([n, n + 1])), "n": n})
        .map(lambda each: (each["words"], each["n"]))
        .batch(2, drop_remainder=True)
    ),
    "numbered by the user": lambda: tf.data.Dataset.range(5, 40).enumerate().batch(4).prefetch(1),
    "empty": lambda: tf.data.Dataset.range(0).batch(2),
}


@pytest.fixture(scope="module")
def strategy() -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy(["CPU:0"])


def shown(iterator: Any) -> list[Any]:
    flat = [tf.nest.flatten(batch, expand_composites=True) for batch in iterator]
    return [[component.numpy().tolist() for component in batch] for batch in flat]


def tapped(strategy: tf.distribute.Strategy, data: tf.data.Dataset | None = None) -> Tap:
    tap = tap_of(strategy.experimental_distribute_dataset(data or PIPELINES["shuffled"]()))
    assert tap is not None
    tap.begin()
    return tap


def new(tap: Tap) -> Any:
    tap.begin()
    return tap.iterate()


@pytest.mark.parametrize("name", PIPELINES)
def test_two_epochs_are_the_same_as_without_a_tap(name: str, strategy: tf.distribute.Strategy) -> None:
    plain = strategy.experimental_distribute_dataset(PIPELINES[name]())
    tap = tap_of(strategy.experimental_distribute_dataset(PIPELINES[name]()))
    assert tap is not None, _changed("what a strategy distributes has another shape")
    # Of one type, so that the step that was traced with one of them is not traced again.
    assert iter(plain)._type_spec == new(tap)._type_spec, _changed("a tap changes the type of iterators")
    expected = [shown(plain), shown(plain)]
    assert [shown(new(tap)), shown(new(tap))] == expected


def test_a_state_tells_how_many_were_drawn_and_a_restored_iterator_hands_out_the_rest(
    strategy: tf.distribute.Strategy,
) -> None:
    tap = tapped(strategy)
    beginning = tap.state()
    iterator = tap.iterate()
    assert beginning is not None
    assert beginning.drawn == 0, _changed("the state of a range no longer has its next number")
    drawn: list[Any] = []
    states = []
    for batch in iterator:
        drawn.append(batch.numpy().tolist())
        states.append(tap.state())
    counts = [state.drawn for state in states if state is not None]
    assert len(counts) == len(drawn) == 6
    for number, count in enumerate(counts, 1):
        assert count is None or count >= number
    assert counts[0] is not None
    for state in [beginning, *filter(None, states)]:
        count = state.drawn
        if count is None:  # The strategy was at the end of the data by then.
            continue
        other = tapped(strategy)
        other.restore(state.to_bytes(), count)
        assert not drawn[count:] or other.skip()
        assert [batch.numpy().tolist() for batch in other.iterate()] == drawn[count + 1 :], count


def test_a_state_with_another_number_is_refused(strategy: tf.distribute.Strategy) -> None:
    tap = tapped(strategy)
    state = tap.state()
    assert state is not None
    with pytest.raises(ValueError, match=r"after 3 elements\. Received: one after 0"):
        tap.restore(state.to_bytes(), 3)


def test_at_the_end_there_is_nothing_to_skip(strategy: tf.distribute.Strategy) -> None:
    tap = tapped(strategy, tf.data.Dataset.range(2).batch(1))
    assert [tap.skip() for _ in range(3)] == [True, True, False]
    state = tap.state()
    assert state is not None
    assert state.drawn is None


def test_what_is_not_distributed_for_this_process_alone_has_no_tap(
    strategy: tf.distribute.Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tap_of(PIPELINES["shuffled"]()) is None
    from_function = strategy.distribute_datasets_from_function(lambda context: PIPELINES["shuffled"]())
    assert tap_of(from_function) is None
    distributed = strategy.experimental_distribute_dataset(PIPELINES["shuffled"]())
    monkeypatch.setattr(
        distributed,
        "_input_workers",
        type("Workers", (), {"worker_devices": ("/job:tpu_worker/replica:0/task:0/device:CPU:0",)})(),
    )
    assert tap_of(distributed) is None


def test_the_attributes_of_other_data_are_not_asked() -> None:
    """An interleaving of Grain keeps a dataset of datasets under a name of TensorFlow's, which may never end."""

    class Interleaved:
        @property
        def _datasets(self) -> Any:
            raise AssertionError("data was drawn")

        _original_dataset = _datasets

    assert datasets.pipelines_of(Interleaved()) == []


def test_what_was_made_on_a_remote_worker_has_no_tap_whose_state_is_lost_with_it(
    strategy: tf.distribute.Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = strategy.experimental_distribute_dataset(PIPELINES["shuffled"]())
    there = "/job:tpu_worker/replica:0/task:0/device:CPU:0"
    monkeypatch.setattr(distributed, "_input_workers", SimpleNamespace(worker_devices=(there,)))
    made_there = SimpleNamespace(_variant_tensor=SimpleNamespace(device=there))
    monkeypatch.setattr(datasets, "pipelines_of", lambda distributed: [made_there])
    assert not datasets.is_copied(distributed)
    assert tap_of(distributed) is None


def test_the_parts_of_a_state_are_looked_at_one_by_one(
    strategy: tf.distribute.Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a copy, so that all of them would take the memory of a large shuffle buffer once more."""

    class Part:
        def __init__(self, part: Any) -> None:
            self.metadata, self.tensors = part.metadata, part.tensors

    seen: list[weakref.ref[Part]] = []
    alive: list[int] = []

    def parts_of(state: bytes) -> Iterator[Part]:
        for each in reshuffling.parts_of(state):
            part = Part(each)
            seen.append(weakref.ref(part))
            yield part
            del part
            alive.append(sum(reference() is not None for reference in seen))

    monkeypatch.setattr(taps, "parts_of", parts_of)
    state = tapped(strategy).state()
    assert state is not None
    assert len(seen) > 2
    assert max(alive) == 1


@pytest.mark.parametrize("name", taps.NEEDED)
def test_a_distributed_dataset_has_what_a_tap_needs(
    name: str, strategy: tf.distribute.Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = strategy.experimental_distribute_dataset(PIPELINES["shuffled"]())
    assert hasattr(distributed, name), _changed(f"distributed datasets have no {name}")
    monkeypatch.delattr(distributed, name)
    assert tap_of(distributed) is None


def test_the_datasets_that_a_tap_is_made_of_are_there(
    strategy: tf.distribute.Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = strategy.experimental_distribute_dataset(PIPELINES["shuffled"]())
    assert taps._map_dataset() is not None, _changed("Dataset.map makes a dataset of another kind")
    monkeypatch.setattr(map_op, "_MapDataset", lambda input_dataset, map_func: None)
    assert tap_of(distributed) is None
    monkeypatch.delattr(map_op, "_MapDataset")
    assert tap_of(distributed) is None


@pytest.mark.parametrize("error", [StopIteration, ValueError])
def test_an_error_of_the_pipeline_does_not_pass_for_its_end(
    error: type[Exception], strategy: tf.distribute.Strategy
) -> None:
    def fails(number: tf.Tensor) -> tf.Tensor:
        if number == 3:
            raise error("of the user's own function")
        return number

    data = tf.data.Dataset.range(9).map(lambda number: tf.py_function(fails, [number], tf.int64)).batch(2)
    ended = []
    for by_a_tap in (False, True):
        distributed = strategy.experimental_distribute_dataset(data)
        iterator = new(tap_of(distributed)) if by_a_tap else iter(distributed)
        next(iterator)
        with pytest.raises((tf.errors.OpError, StopIteration)) as raised:
            next(iterator)
        ended.append(raised.type)
    assert ended[0] is ended[1] is not StopIteration
