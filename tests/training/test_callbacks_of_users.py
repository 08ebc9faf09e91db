"""Callbacks of the user's that change weights or gather values: what a preemption at any hook leaves of that."""

from __future__ import annotations

import re
import time
from collections import deque
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import pytest

from tests import preempted
from tests.fits import Stateless


class Halves(Stateless):
    """Validates with half of the weights."""

    def on_test_begin(self, logs: Any = None) -> None:
        self.kept = halve(self.model)

    def on_test_end(self, logs: Any = None) -> None:
        self.model.set_weights(self.kept)


def halve(model: keras.Model) -> list[np.ndarray[Any, Any]]:
    """Halves the weights; returns what they were."""
    before = model.get_weights()
    model.set_weights([weight * np.float32(0.5) for weight in before])
    return before


@pytest.mark.parametrize("strike", [("on_test_batch_begin", 1), ("on_test_batch_begin", 5)])
def test_weights_swapped_for_a_validation_are_kept_before_the_first_one(
    tmp_path: Path, strike: preempted.Strike
) -> None:
    preempted.assert_exact(tmp_path, lambda: [Halves()], strike)


class Evaluates(keras.Sequential):
    """Evaluates with half of the weights."""

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        before = halve(self)
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self.set_weights(before)


def test_weights_that_the_models_own_evaluate_swaps_are_kept(tmp_path: Path) -> None:
    preempted.assert_exact(tmp_path, list, ("on_test_batch_begin", 1), kind=Evaluates)


class HalvesAsEpochsBegin(Stateless):
    """Halves the weights whenever an epoch begins."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        halve(self.model)


class HalvesAsTrainingBegins(Stateless):
    """Halves the weights when training begins, and sets a learning rate that others change later."""

    def on_train_begin(self, logs: Any = None) -> None:
        halve(self.model)
        self.model.optimizer.learning_rate = 0.1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.01 / (epoch + 1)


class HalvesAroundSteps(Stateless):
    """Changes the weights before and after each step."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        halve(self.model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.set_weights([weight * np.float32(1.5) for weight in self.model.get_weights()])


IN_EPOCH, IN_VALIDATION, BETWEEN = (
    ("on_train_batch_begin", 8),
    ("on_test_batch_begin", 5),
    ("on_epoch_end", 1),
)


@pytest.mark.parametrize(
    ("kind", "strike"),
    [
        (HalvesAsEpochsBegin, IN_EPOCH),
        (HalvesAsEpochsBegin, IN_VALIDATION),
        (HalvesAsTrainingBegins, IN_EPOCH),
        (HalvesAsTrainingBegins, BETWEEN),
        (HalvesAroundSteps, IN_EPOCH),
        (HalvesAroundSteps, BETWEEN),
    ],
)
def test_weights_that_a_callback_changes_at_other_hooks_are_those_of_an_undisturbed_run(
    tmp_path: Path, kind: type[keras.callbacks.Callback], strike: preempted.Strike
) -> None:
    preempted.assert_exact(tmp_path, lambda: [kind()], strike)


class HalvesBetween(keras.callbacks.Callback):
    """Half of the weights from the end of an epoch until the next begins."""

    kept: Any = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.kept = halve(self.model)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self.kept is not None:
            self.model.set_weights(self.kept)
            self.kept = None


def test_weights_that_a_callback_holds_between_two_epochs_are_kept_with_it(tmp_path: Path) -> None:
    preempted.assert_exact(tmp_path, lambda: [HalvesBetween()], BETWEEN)


ELSEWHERE: list[float] = []


class Gathers(keras.callbacks.Callback):
    """Holds what callbacks hold, without get_state."""

    count = 0
    of_class: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        super().__init__()
        ELSEWHERE.clear()
        self.of_class.clear()
        self.elsewhere = ELSEWHERE
        self.losses: list[float] = []
        self.same = self.losses
        self.best: list[float] | None = None
        self.seen: set[tuple[int, int]] = set()
        self.last: deque[float] = deque(maxlen=3)
        self.by_epoch: dict[int, Any] = {}
        self.sums = np.zeros((2, 2))
        self.rng = np.random.default_rng(4)
        self.began = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        self.rates: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.of_epoch: list[float] = []
        self.by_epoch[epoch] = self.of_epoch
        self.flag, self.began = True, time.time()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        loss = float(logs["loss"])
        self.count += 1
        for each in (self.elsewhere, self.losses, self.last, self.of_epoch):
            each.append(loss)
        self.seen.add((batch, self.count))
        self.sums += loss
        self.of_class["most"] = max(self.of_class.get("most", 0), batch)
        if self.best is None or loss < min(self.best):
            self.best = self.losses
        self.rates.append(self.rng.random())
        self.flag = False
        self.model.optimizer.learning_rate = 0.01 + 0.001 * self.rates[-1]

    def what(self) -> Any:
        names = [
            "count",
            "of_class",
            "losses",
            "seen",
            "last",
            "by_epoch",
            "sums",
            "rates",
            "of_epoch",
            "flag",
            "best",
        ]
        shared = (self.best is self.losses, self.same is self.losses, self.elsewhere is ELSEWHERE)
        return [getattr(self, name) for name in names], list(ELSEWHERE), shared


@pytest.mark.parametrize("strikes", [[IN_EPOCH, IN_VALIDATION], [BETWEEN]])
def test_what_a_callback_gathers_in_its_attributes_is_kept_without_get_state(
    tmp_path: Path, strikes: list[preempted.Strike], caplog: pytest.LogCaptureFixture
) -> None:
    preempted.assert_exact(tmp_path, lambda: [Gathers()], *strikes, what=Gathers.what)
    assert "After a preemption: bit-identical" in caplog.text
    assert "cannot be kept" not in caplog.text


class Finder(keras.callbacks.Callback):
    """Finds a learning rate."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))


def find_and_fit(directory: Path, strike: preempted.Strike | None, *, plain: bool = False) -> Any:
    """A script that looks for a learning rate first."""
    finder = Finder()
    options = {"plain": plain, "validation_data": None}
    preempted.start(directory, lambda: [finder], epochs=1, **options)
    rate = 0.01 * finder.losses.index(min(finder.losses))
    preempted.compiled(keras.Sequential).keras.optimizer.learning_rate = rate
    return preempted.start(directory, list, strike, new_process=False, **options)


def test_what_a_callback_of_a_fit_that_had_ended_gathered_is_there_again(tmp_path: Path) -> None:
    expected = find_and_fit(tmp_path / "plain", None, plain=True)
    assert find_and_fit(tmp_path / "run", IN_EPOCH) is None
    expected.assert_same(find_and_fit(tmp_path / "run", None))


def test_what_a_callback_gathered_elsewhere_is_named_when_the_next_fit_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    losses: list[float] = []
    gathers = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["loss"]))
    preempted.start(tmp_path, lambda: [gathers], epochs=1)
    assert "Once started again" not in caplog.text
    preempted.start(tmp_path, list, epochs=1, new_process=False)
    (told,) = [each for each in caplog.messages if "Once started again" in each]
    assert re.search(
        r": LambdaCallback \(on_epoch_end at test_callbacks_of_users.py:\d+: the variable los", told
    )
    assert "Instead of a LambdaCallback, write a subclass of keras.callbacks.Callback" in told
    assert "get_state" not in caplog.text


def test_a_fit_within_a_decorator_that_hides_it_is_found_and_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = keras.Model.fit

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    monkeypatch.setattr(keras.Model, "fit", timed)
    assert preempted.start(tmp_path / "run", list, epochs=1) is not None
    held = {"fit": original}

    def hidden(self: Any, *args: Any, **kwargs: Any) -> Any:
        return held["fit"](self, *args, **kwargs)

    monkeypatch.setattr(keras.Model, "fit", hidden)
    with pytest.raises(
        RuntimeError, match=r"Expected keras\.Model\.fit to be the one of Keras.*functools\.wraps"
    ):
        preempted.start(tmp_path / "other", list, epochs=1)
