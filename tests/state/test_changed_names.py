"""What code sets, changes and takes from a clock is read alike in all versions of Python, without Keras.

`python -m pytest --noconftest tests/state/test_changed_names.py`
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from keras_preempt.backend.user_code import enclosed
from keras_preempt.state.changed_names import BY_NAME, changed_outside, clock_attributes, set_by

HISTORY: dict[str, list[float]] = defaultdict(list)
ROWS: list[Any] = []
FACTOR = 1.0


def of_model(self: Any, epoch: int) -> None:
    self.model.kl_weight = 0.1 * epoch


def two_of_model(self: Any, epoch: int) -> None:
    self.model.a, self.model.b = epoch, self


def added(self: Any, epoch: int) -> None:
    self.model.kl_weight += epoch


def through_variables(self: Any, epoch: int) -> None:
    loss, other = self.model.loss, epoch
    loss.beta = other


def item(self: Any, epoch: int) -> None:
    self.model.loss.betas["a"] = epoch


def item_of_a_call(self: Any, epoch: int) -> None:
    self.model.betas[self.name(epoch, of=self)] = epoch


def part(self: Any, epoch: int) -> None:
    self.model.betas[1:epoch] = self


def item_of_an_item(self: Any, epoch: int) -> None:
    self.model.layers[epoch].scales[0] = epoch


def by_name(self: Any, epoch: int) -> None:
    setattr(self.model, "kl_" + "weight", epoch)


def in_a_loop(self: Any, epoch: int) -> None:
    for layer in self.model.layers:
        layer.trainable = True


def in_a_comprehension(self: Any, epoch: int) -> None:
    [setattr(layer, "rate", epoch) for layer in self.model.layers]


def within(self: Any, epoch: int) -> Any:
    def inner() -> None:
        self.model.kl_weight = epoch

    return inner


def of_module(self: Any, epoch: int) -> None:
    global FACTOR
    FACTOR = 0.1 * epoch


def item_of_module(self: Any, epoch: int) -> None:
    HISTORY["a"] = [epoch]


def own(self: Any, epoch: int) -> None:
    self.best, self.last = epoch, self
    self.count += 1
    self.rows["a"] = [epoch]
    self.rows["a"] += [epoch]
    self.rows[self.name(epoch)] = epoch
    setattr(self, f"best_{epoch}", epoch)
    self.model.stop_training = True
    self.model.optimizer.learning_rate = 0.1
    total = [0]
    total[0] = epoch


def own_within(self: Any, epoch: int) -> Any:
    def inner() -> None:
        self.last = epoch
        self.count += 1

    class Row:
        size = epoch

    return inner, Row


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (of_model, {"kl_weight"}),
        (two_of_model, {"a", "b"}),
        (added, {"kl_weight"}),
        (through_variables, {"beta"}),
        (item, {"betas"}),
        (item_of_a_call, {"betas"}),
        (part, {"betas"}),
        (item_of_an_item, {"scales"}),
        (by_name, {BY_NAME}),
        (in_a_loop, {"trainable"}),
        (in_a_comprehension, {BY_NAME}),
        (within, {"kl_weight"}),
        (own, set()),
        (own_within, set()),
    ],
)
def test_attributes_of_other_objects_that_are_set_are_found(
    function: Callable[..., Any], expected: set[str]
) -> None:
    assert {*set_by(function.__code__, "self")} == {(name, False) for name in expected}


@pytest.mark.parametrize(("function", "expected"), [(of_module, {"FACTOR"}), (item_of_module, {"HISTORY"})])
def test_variables_that_are_set_are_found(function: Callable[..., Any], expected: set[str]) -> None:
    assert {*set_by(function.__code__, "self")} == {(name, True) for name in expected}


def test_what_a_function_sets_of_an_argument_is_another_objects() -> None:
    assert {*set_by(own.__code__, None)} >= {("best", False), ("count", False), (BY_NAME, False)}


def appends() -> None:
    ROWS.append(1)


def appends_to_an_item(name: str) -> None:
    HISTORY[name] += [1]


def slices() -> None:
    ROWS[1:2] = [1]


def only_looks() -> Any:
    rows = [len(ROWS), ROWS.index(1), HISTORY.get("a")]
    rows.append(FACTOR)
    return rows


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (appends, {"ROWS"}),
        (appends_to_an_item, {"HISTORY"}),
        (slices, {"ROWS"}),
        (of_module, {"FACTOR"}),
        (only_looks, set()),
    ],
)
def test_variables_outside_whose_content_changes_are_found(function: Any, expected: set[str]) -> None:
    assert {name for name, _ in changed_outside(function, enclosed(function))} == expected


def test_variables_of_an_enclosing_function_that_change_are_found() -> None:
    count, rows, only_read = 0, [], [1]

    def counts(more: Any) -> Any:
        nonlocal count
        count += 1
        rows.append((more, only_read))
        return [each for each in only_read]  # noqa: C416

    assert dict(changed_outside(counts, enclosed(counts))) == {"count": None, "rows": rows}


class Timed:
    """Some attributes come from a clock."""

    def begins(self) -> None:
        self.began, self.count = time.time(), 0

    def ends(self, batch: int) -> None:
        now = time.perf_counter()
        number, batch = batch, self.seen
        took = now - self.began
        self.times.append(took)
        self.number = number
        self.last[batch] = took
        self.parts[0:1] = [took]
        self.rate = self.of(number)

    def age(self) -> float:
        return time.time() - self.started

    def tells(self) -> None:
        self.told = self.age()
        for _, value in self.items:
            self.other = value


def test_attributes_that_come_from_a_clock_are_told_from_others() -> None:
    found = clock_attributes(Timed)
    assert found >= {"began", "times", "last", "parts", "told"}
    assert not found & {"number", "rate", "seen", "other", "items", "model"}
