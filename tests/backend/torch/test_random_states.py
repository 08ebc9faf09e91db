"""The states of all generators are taken and set together."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from keras_preempt.backend.torch import random_states
from keras_preempt.backend.torch.random_states import GeneratorStates
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
