"""Code that draws from a global random state is found by reading it, without Keras.

`python -m pytest --noconftest tests/backend/keras/test_data_code.py`
"""

from __future__ import annotations

import functools
import itertools
import random
import sys
from collections.abc import Iterator
from random import shuffle as mix
from typing import Any

import numpy as np
import pytest

from keras_preempt.backend.keras.data_code import global_draw


def plain() -> float:
    return random.random()


def plain_of(number: int) -> float:
    return number * plain()


def by_name(order: list[int]) -> None:
    mix(order)


def sampled() -> Any:
    return np.random.sample(3)


def imported() -> Any:
    from random import gauss

    return gauss(0, 1)


def bound() -> Any:
    draws = np.random
    return draws.normal()


def within() -> Any:
    return [random.choice((1, 2)) for _ in range(3)]


def yielding() -> Iterator[float]:
    yield random.random()


asked: list[str] = []


class Augmenter:
    """Draws in a method that another one calls; knows what it was asked for."""

    def __getattribute__(self, name: str) -> Any:
        asked.append(name)
        return object.__getattribute__(self, name)

    def __call__(self) -> Any:
        return self.turned()

    def turned(self) -> Any:
        return np.random.rand()


class Static:
    @staticmethod
    def drawn() -> float:
        return random.random()

    def own(self) -> Any:
        return self.drawn()


def handed_to_another(numbers: list[int]) -> Any:
    draw = random.random
    return map(draw, numbers)


augmenter = Augmenter()


def through_an_object() -> Any:
    return augmenter.turned()


def closed() -> Any:
    draw = plain
    return lambda: draw()


def with_default(draw: Any = plain) -> Any:
    return draw()


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (plain, "plain"),
        (by_name, "by_name"),
        (sampled, "sampled"),
        (imported, "imported"),
        (bound, "bound"),
        (handed_to_another, "handed_to_another"),
        (yielding(), "yielding"),
        (augmenter, "turned"),
        (Static().own, "drawn"),
        (through_an_object, "turned"),
        (closed(), "plain"),
        (with_default, "plain"),
        (functools.partial(by_name, []), "by_name"),
        (itertools.chain([1.0], yielding()), "yielding"),
        (map(plain_of, range(3)), "plain"),
    ],
    ids=lambda each: each if type(each) is str else type(each).__name__,
)
def test_a_draw_is_named_with_its_function_and_line(code: Any, name: str) -> None:
    asked.clear()
    assert global_draw(code).startswith(f"{name} (test_data_code.py:")
    assert asked == []


def test_a_draw_in_a_comprehension_is_found() -> None:
    assert "test_data_code.py:" in global_draw(within)


def seeded() -> float:
    random.seed(3)
    return random.random()


def seeded_numpy() -> Any:
    np.random.seed(3)
    return np.random.rand()


def of_its_own() -> Any:
    draws, others = np.random.default_rng(3), random.Random(4)
    return draws.normal() + others.random()


def looks() -> Any:
    return random.getstate()


def chosen(seed: int | None = None) -> Any:
    draw = np.random.rand if seed is None else np.random.default_rng(seed).random
    return draw()


def kept() -> Any:
    draw = random.random
    number = 3

    def named() -> Any:
        return draw if number else None

    return named


# Python 3.10 has the end of such code once for each way to it.
_chosen = pytest.param(chosen, marks=pytest.mark.xfail(sys.version_info < (3, 11), reason="found twice"))


@pytest.mark.parametrize(
    "code", [_chosen, kept, seeded, seeded_numpy, of_its_own, looks, len, None, 3, object()]
)
def test_nothing_is_said_of_code_that_seeds_or_draws_from_its_own_generator(code: Any) -> None:
    assert global_draw(code) == ""
