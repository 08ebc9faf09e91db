"""What users' callbacks hold in their attributes is kept where that is safe, and otherwise named."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_preempt.backend.keras.callbacks import attributes_of_keras
from keras_preempt.cli.compare import SavedState, compare_states
from keras_preempt.state.callbacks import CallbackStates

SHARED: list[float] = []
TOTAL = 0


class Holds(keras.callbacks.Callback):
    """Holds what a test gives it."""

    def __init__(self, **held: Any) -> None:
        super().__init__()
        for name, value in held.items():
            setattr(self, name, value)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.touched = True


def handed_over(
    old: list[keras.callbacks.Callback], new: list[keras.callbacks.Callback], change: Any
) -> dict[str, Any]:
    """Begins with `old`, changes it and gives its attributes to `new`, as they come out of a file; returns them."""
    states, arrays = CallbackStates(old), dict[str, Any]()
    states.attributes.begin()
    change()
    saved = json.loads(json.dumps(states.attributes.capture(arrays)))
    CallbackStates(new).attributes.restore(saved, {name: array.copy() for name, array in arrays.items()})
    return saved


VALUES: dict[str, Any] = {
    "numbers": [1, 0.1 + 0.2, float("nan"), True, None, "text", 2**80, complex(1, 2), b"bytes"],
    "scalar": np.float32(0.1),
    "nested": {"a": [{"b": (1, [2])}], 3: {4, 5}, (6, "x"): deque([7], maxlen=2)},
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "counted": Counter("aab"),
    "ordered": OrderedDict(b=1, a=2),
}


def test_values_of_every_kind_come_back_as_they_were() -> None:
    old, new = Holds(**dict.fromkeys(VALUES)), Holds(**dict.fromkeys(VALUES))
    handed_over([old], [new], lambda: vars(old).update(VALUES))
    for name, value in VALUES.items():
        np.testing.assert_equal(getattr(new, name), value)
        assert type(getattr(new, name)) is type(value)


def test_random_generators_go_on() -> None:
    def make() -> Holds:
        return Holds(
            python=random.Random(3), numpy=np.random.default_rng(3), old=np.random.RandomState(3), rows=None
        )

    def draw(callback: Any) -> Any:
        return callback.python.random(), callback.numpy.random(), callback.old.rand()

    old, new = make(), make()
    handed_over([old], [new], lambda: draw(old))
    assert draw(new) == draw(old)


def test_what_has_not_changed_is_not_kept_so_that_a_script_may_change_it() -> None:
    old, new = Holds(patience=3, count=0), Holds(patience=5, count=0)
    saved = handed_over([old], [new], lambda: vars(old).update(count=7))
    assert saved == {"Holds": {"attributes": {"count": 7}}}
    assert (new.patience, new.count) == (5, 7)


def test_objects_that_others_hold_as_well_get_their_content_back_in_place() -> None:
    held: list[float] = []
    rows = np.zeros(2)
    by_name: dict[str, Any] = defaultdict(list, losses=[])
    old, new = (
        Holds(losses=[], rows=np.zeros(2), by_name=defaultdict(list, losses=[])),
        Holds(losses=held, rows=rows, by_name=by_name),
    )
    inner = by_name["losses"]

    def change() -> None:
        old.losses.append(0.5)
        old.rows += 1
        old.by_name["losses"].append(1)

    handed_over([old], [new], change)
    assert (held, rows.tolist(), inner) == ([0.5], [1, 1], [1])
    assert (new.losses is held, new.rows is rows, new.by_name["losses"] is inner) == (True,) * 3


def test_an_object_that_was_replaced_is_not_put_into_the_one_that_others_hold() -> None:
    held: list[float] = []
    old, new = Holds(losses=[]), Holds(losses=held)
    handed_over([old], [new], lambda: vars(old).update(losses=[1.0]))
    assert (new.losses, held) == ([1.0], [])


def test_two_places_that_hold_one_object_do_so_again_also_in_two_callbacks() -> None:
    def make() -> list[Holds]:
        return [Holds(current=[0], best=None), Holds(seen=None)]

    (old, other), (new, new_other) = make(), make()

    def change() -> None:
        old.current.append(1)
        old.best = {"of": old.current}
        other.seen = old.current

    handed_over([old, other], [new, new_other], change)
    assert new.best["of"] is new.current
    assert new_other.seen is new.current
    assert new.current == [0, 1]


def test_two_places_that_no_longer_hold_one_object_are_two() -> None:
    def make() -> Holds:
        one: list[int] = []
        return Holds(first=one, second=one)

    old, new = make(), make()

    def change() -> None:
        old.second = []
        old.first.append(1)

    handed_over([old], [new], change)
    assert (new.first, new.second) == ([1], [])


def test_what_a_hook_has_changed_that_a_restart_calls_once_more_is_put_back() -> None:
    old, new = Holds(flag=False, count=0), Holds(flag=False, count=0)
    states, arrays = CallbackStates([old]), dict[str, Any]()
    states.attributes.begin()
    old.count = 1
    saved = states.attributes.capture(arrays)
    again = CallbackStates([new])
    again.attributes.restore(saved, arrays)
    new.flag, new.count = True, 2
    again.attributes.restore(saved, arrays)
    assert (new.flag, new.count) == (False, 1)


def test_what_keras_owns_is_none_of_the_users() -> None:
    class Stops(keras.callbacks.EarlyStopping):
        mine = 0

    stops = Stops()
    states = CallbackStates([stops])
    states.attributes.begin()
    stops.on_train_begin()
    stops.params, stops.wait, stops.mine = {"epochs": 3}, 4, 5
    assert states.attributes.capture({}) == {"Stops": {"attributes": {"mine": 5}}}
    owned = attributes_of_keras(Stops)
    assert {"params", "wait", "best", "monitor", "on_epoch_end"} <= owned
    assert {"mine", "losses"}.isdisjoint(owned)


def test_a_class_may_say_that_its_attributes_are_not_to_be_kept() -> None:
    class Not(Holds):
        keeps_state = False

    old = Not(file=threading.Lock())
    states = CallbackStates([old])
    states.attributes.begin()
    old.count = 3
    assert states.attributes.capture({}) == {}
    assert states.unsaved == []


class Timed(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self.best = self.slowest = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        seconds = time.perf_counter() - self.began
        self.times.append(seconds)
        self.slowest = max(self.slowest, self.times[-1])
        self.best = max(self.best, logs["loss"])


def test_what_reads_a_clock_is_kept_and_not_judged() -> None:
    states = []
    for loss in (1.0, 1.0, 2.0):
        timed = Timed()
        of = CallbackStates([timed])
        of.attributes.begin()
        timed.on_epoch_begin(0)
        timed.on_epoch_end(0, {"loss": loss})
        states.append({"attributes": of.attributes.capture({})})
    assert states[0]["attributes"]["Timed"].keys() == {"attributes", "clocks"}
    first, second, third = (SavedState({"model/w": np.zeros(1)}, {"w0": state}) for state in states)
    compared = compare_states(first, second)
    assert compared.identical
    assert "reads a clock" in str(compared)
    assert not compare_states(first, third).identical


def writes(file: Any) -> keras.callbacks.Callback:
    class Writes(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.file = file

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.file.write("x")

    return Writes()


class Helper:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        self.count += 1


class Helped(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.helper = Helper()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.helper.add()


class Tensors(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.sample = keras.ops.ones(2)
        self.last = keras.ops.ones(2)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.last = self.sample * 2


class Outside(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        global TOTAL
        TOTAL += 1
        SHARED.append(logs["loss"])


def enclosing() -> keras.callbacks.Callback:
    losses: list[float] = []
    return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["loss"]))


def test_what_cannot_be_kept_is_named(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        found = {*CallbackStates([writes(file), Helped(), Tensors(), Outside(), enclosing()]).unsaved}
    line = enclosing.__code__.co_firstlineno + 2
    assert {each for each in found if "last" not in each} == {
        "Writes (its attribute file: TextIOWrapper)",
        "Helped (an object that it uses: Helper)",
        "Outside (the variable TOTAL outside of it)",
        "Outside (the variable SHARED outside of it)",
        f"LambdaCallback (on_epoch_end at test_attributes.py:{line}: the variable losses outside of it)",
    }
    assert len(found) == 6


class HoldsShared(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.shared = SHARED

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        SHARED.append(logs["loss"])


@pytest.mark.parametrize(
    "callback", [Timed(), HoldsShared(), Holds(), keras.callbacks.LambdaCallback(on_epoch_end=print)]
)
def test_of_what_is_kept_nothing_is_said(callback: keras.callbacks.Callback) -> None:
    assert CallbackStates([callback]).unsaved == []


def test_what_comes_to_be_there_later_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    holds = Holds(count=0, shape=tmp_path)
    states = CallbackStates([holds])
    states.attributes.tell_unkept(0)
    assert caplog.messages == []
    holds.file, holds.large = threading.Lock(), np.zeros(1 << 22)
    states.attributes.tell_unkept(1)
    assert caplog.messages == []
    for _ in range(2):
        states.attributes.tell_unkept(0)
    (said,) = caplog.messages
    assert re.search(r"preemption: Holds\.file \(lock\), Holds\.large \(.*\) cannot be kept", said)
