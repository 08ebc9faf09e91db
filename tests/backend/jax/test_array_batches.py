"""What Keras makes of arrays on JAX is known: the order of an epoch can be drawn again, from each of its batches on."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras.src.backend.jax.trainer import JAXEpochIterator

from keras_preempt.backend.jax import array_batches
from tests.backend.arrays import BATCH, DATA, OPTIONS, SAMPLES, X, Y, drawn


def adapter(**options: Any) -> Any:
    return JAXEpochIterator(**{**DATA, **options}).data_adapter


def undisturbed(data: Any) -> tuple[list[Any], list[Any]]:
    """The batches of an epoch, and NumPy's state before the first and after each of them."""
    keras.utils.set_random_seed(3)
    batches, states = [], [np.random.get_state()]
    for batch in data.get_jax_iterator():
        batches += drawn([batch])
        states.append(np.random.get_state())
    return batches, states


def is_state(state: Any) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(np.random.get_state(), state, strict=True))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_order_is_drawn_again_at_every_batch(options: dict[str, Any]) -> None:
    data = adapter(**options)
    whole, states = undisturbed(data)
    for batch in range(len(whole) + 1):
        np.random.set_state(states[batch])  # As a restart finds it: the batches before were drawn.
        with array_batches.beginning_at(data, batch, states[0]):
            rest = iter(data.get_jax_iterator())
            first = drawn([next(rest)]) if batch < len(whole) else []
        assert is_state(states[min(batch + bool(first), len(whole))]), (
            "NumPy is where it was in the first run"
        )
        assert [*first, *drawn(rest)] == whole[batch:], batch
        assert is_state(states[-1])
    rows = [row for batch in whole for row in batch[0]]
    assert (rows == sorted(rows)) == (options["shuffle"] is False), "else it would say nothing"


def test_an_order_is_drawn_again_wherever_numpy_stands_by_now() -> None:
    data = adapter(shuffle=True)
    whole, states = undisturbed(data)
    keras.utils.set_random_seed(8)
    present = np.random.get_state()
    with array_batches.beginning_at(data, 4, states[0]):
        assert drawn(data.get_jax_iterator()) == whole[4:]
    assert is_state(present)


def test_the_adapter_is_as_it_was_afterwards() -> None:
    data = adapter(shuffle=True)
    before = dict(vars(data))
    with array_batches.beginning_at(data, 2, np.random.get_state()):
        drawn(data.get_jax_iterator())
    assert vars(data) == before
    np.random.seed(5)
    one = drawn(data.get_jax_iterator())
    assert drawn(data.get_jax_iterator()) != one, (
        "an iterator that Keras makes later draws an order of its own"
    )


def test_nothing_of_a_batch_that_is_left_out_is_taken_out_of_the_arrays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    data = adapter(shuffle=True, y=None)
    original = type(data)._get_iterator

    def counted(self: Any, take: Any, inputs: Any) -> Any:
        def count(value: Any, indices: Any) -> Any:
            result = take(value, indices=indices)
            taken.extend([] if result is None else [len(indices)])
            return result

        return original(self, count, inputs)

    monkeypatch.setattr(type(data), "_get_iterator", counted)
    drawn(data.get_jax_iterator())
    assert sum(taken) == SAMPLES
    taken.clear()
    with array_batches.beginning_at(data, 5, np.random.get_state()):
        assert taken == []
        assert len(drawn(data.get_jax_iterator())) == 2
    assert taken == [BATCH, SAMPLES % BATCH]


@pytest.mark.parametrize(("x", "of_arrays"), [(X, True), ((row for row in [(X, Y)]), False)])
def test_other_data_is_told_from_arrays(x: Any, of_arrays: bool) -> None:
    options: dict[str, Any] = {} if of_arrays else {"y": None, "batch_size": None}
    assert array_batches.is_of_arrays(adapter(x=x, **options)) == of_arrays


def test_the_inputs_of_an_adapter_are_its_arrays() -> None:
    leaves = keras.tree.flatten(adapter(shuffle=True)._inputs)
    assert [tuple(leaf.shape) for leaf in leaves if leaf is not None] == [(SAMPLES, 2), (SAMPLES,)], (
        "ArrayDataAdapter._inputs is not the structure of its arrays any more"
    )
