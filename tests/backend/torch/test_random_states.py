"""The states of all generators are taken and set together."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from keras_preempt.backend.torch import random_states
from keras_preempt.backend.torch.random_states import GeneratorStates, NumpyState
from keras_preempt.state import plain


def _draw(own: torch.Generator) -> list[float]:
    return [random.random(), np.random.rand(), float(torch.rand(())), float(torch.rand((), generator=own))]


@pytest.mark.parametrize("everything", [False, True])
def test_what_is_drawn_after_a_moment_is_drawn_again(everything: bool) -> None:
    own = torch.Generator().manual_seed(3)
    taken = GeneratorStates.take([own], everything=everything)
    drawn = _draw(own)
    arrays: dict[str, np.ndarray] = {}
    saved = plain.encode(taken.to_plain(), arrays, "x")
    again = GeneratorStates.from_plain(plain.decode(saved, arrays))
    assert again.is_like(taken)
    again.apply([own])
    first = 0 if everything else 2
    assert _draw(own)[first:] == drawn[first:]
    assert not again.is_like(GeneratorStates.take([own], everything=everything))


def test_a_device_that_is_not_there_is_told(caplog: pytest.LogCaptureFixture) -> None:
    random_states.restore({**random_states.states(), "cuda:99": np.zeros(16, np.uint8)})
    assert "NOT exact: the checkpoint has the state of the random generator of cuda:99" in caplog.text


def test_another_number_of_generators_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected data with 0 random generators of its own"):
        random_states.apply_own([], [torch.Generator()])


@pytest.fixture
def of_numpy() -> Iterator[None]:
    generator, state = np.random.get_bit_generator(), np.random.get_state(legacy=True)
    yield
    np.random.set_bit_generator(generator)
    np.random.set_state(state)


@pytest.mark.usefixtures("of_numpy")
def test_the_state_of_numpy_is_told_after_whatever_was_drawn() -> None:
    told, luck = NumpyState(), random.Random(5)
    kept = np.random.get_state(legacy=True)
    ways = [
        np.random.rand,
        np.random.randn,
        lambda: np.random.randn(3),
        lambda: np.random.shuffle(np.arange(700)),
        lambda: np.random.seed(luck.randrange(3)),
        lambda: np.random.set_state(kept),
        lambda: None,
    ]
    for _ in range(400):
        luck.choice(ways)()
        for found, expected in zip(told.now(asked=False), np.random.get_state(legacy=True), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.usefixtures("of_numpy")
def test_numpy_is_asked_only_if_it_was_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    told, ask, times = NumpyState(), np.random.get_state, [0]

    def counted(legacy: bool) -> object:
        times[0] += 1
        return ask(legacy=legacy)

    monkeypatch.setattr(np.random, "get_state", counted)
    np.random.seed(1)
    for draw, asked in ((False, 1), (False, 1), (True, 2), (False, 2)):
        if draw:
            np.random.rand()
        told.now(asked=False)
        assert times == [asked]
    told.now(asked=True)
    assert times == [3]
    np.random.randn()  # The other half of the pair is left.
    told.now(asked=False)
    told.now(asked=False)
    assert times == [5]


@pytest.mark.usefixtures("of_numpy")
def test_another_generator_under_numpy_is_asked() -> None:
    np.random.set_bit_generator(np.random.PCG64(3))
    told = NumpyState()
    before = np.random.get_state(legacy=False)
    np.random.rand()
    with pytest.warns(RuntimeWarning, match="legacy"):
        assert told.now(asked=False)["state"] != before["state"]
