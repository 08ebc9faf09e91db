"""Every private name of Keras on torch and of torch's loaders still exists and still means what is relied upon."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import keras
import numpy as np
import pytest
import torch
from keras.src.backend.torch.trainer import TorchEpochIterator
from torch.utils.data import DataLoader, TensorDataset

from keras_preempt.backend import requirements, versions
from keras_preempt.backend.keras import names
from keras_preempt.backend.keras import running_fit as keras_fit
from keras_preempt.backend.torch.backend import BACKEND
from keras_preempt.backend.torch.feed import TorchFeed

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")


def _changed(what: str) -> str:
    return (
        f"{what} (Keras {keras.__version__} and torch {torch.__version__} installed, {versions.NEWEST_KERAS} and "
        f"{versions.NEWEST_TORCH} verified)"
    )


class Looking(keras.callbacks.Callback):
    """Calls a function with the model at one hook, and keeps what it returns."""

    def __init__(self, hook: str, look: Any) -> None:
        super().__init__()
        self.found: list[Any] = []
        setattr(self, hook, lambda *_, **__: self.found.append(look(self.model)))


def fit(hook: str, look: Any, x: Any = X, y: Any = Y, **arguments: Any) -> tuple[Any, list[Any]]:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    looking = Looking(hook, look)
    arguments = {"batch_size": None if y is None else 4, "verbose": 0, "callbacks": [looking], **arguments}
    history = model.fit(x, y, **arguments)
    return history, looking.found


def test_every_name_in_the_tables_is_there() -> None:
    assert names.missing() == []
    for path in (*names.ATTRIBUTES, *names.OF_TRAINERS["torch"]):
        assert names._find(path) is not None, _changed(f"{path} is gone")
    assert requirements.changed_names() == []


def test_a_batch_is_drawn_before_the_hook_of_its_step() -> None:
    def look(fitted: Any) -> int:
        feed = BACKEND.running_fit(fitted).feed
        return int(feed.epoch_iterator._steps_seen)

    drawn: list[int] = []

    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            drawn.append(index)
            return X[index], Y[index]

    loader = DataLoader(Rows(), batch_size=4)
    seen: list[int] = []
    fit("on_train_batch_begin", lambda fitted: seen.append(len(drawn)), loader, None, shuffle=False)
    # Four more before the fit, with which Keras builds the model's metrics.
    assert [count % 4 for count in seen] == [0, 0], _changed("when a batch is drawn")
    assert seen[1] - seen[0] == 4, _changed("when a batch is drawn")
    _, found = fit("on_train_batch_begin", look)
    assert found == [1, 2], _changed("TorchEpochIterator._steps_seen")


def test_an_adapter_keeps_the_loader_and_iterates_over_it() -> None:
    loader = DataLoader(TensorDataset(torch.from_numpy(X)), batch_size=4)
    iterator = TorchEpochIterator(x=loader)
    assert iterator.data_adapter._dataloader is loader, _changed("TorchDataLoaderAdapter._dataloader")
    assert iterator.data_adapter.get_torch_dataloader() is loader
    feed = TorchFeed(iterator)
    assert feed.loader() is loader
    assert len(list(iterator)) == 2
    assert feed.iterators == 2, _changed("the epoch iterator makes another iterator at its end")


def test_persistent_workers_are_kept_by_the_loader() -> None:
    dataset = TensorDataset(torch.from_numpy(X))
    loader = DataLoader(
        dataset, batch_size=4, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
    )
    assert loader._iterator is None, _changed("DataLoader._iterator")
    iterator = iter(loader)
    assert loader._iterator is iterator, _changed("DataLoader._iterator")
    assert iterator._index_sampler is loader.batch_sampler, _changed("_BaseDataLoaderIter._index_sampler")
    assert iter(loader) is iterator


def test_an_iterator_of_a_loader_draws_a_seed_when_it_is_made_and_the_order_at_its_first_draw() -> None:
    loader = DataLoader(TensorDataset(torch.from_numpy(X)), batch_size=4, shuffle=True)
    states = [torch.random.get_rng_state()]
    iterator = iter(loader)
    states.append(torch.random.get_rng_state())
    for _ in range(2):
        next(iterator)
        states.append(torch.random.get_rng_state())
    same = [torch.equal(one, other) for one, other in pairwise(states)]
    assert same == [False, False, True], _changed("when a DataLoader draws")


def test_the_training_function_is_called_on_the_model() -> None:
    called: list[int] = []

    def wrap(fitted: Any) -> None:
        original = fitted.train_function
        fitted.train_function = lambda data: called.append(1) or original(data)

    fit("on_train_begin", wrap)
    assert called == [1, 1], _changed("model.train_function")


class Guarded(keras.callbacks.Callback):
    """Keeps the errors that are shown to the guard of its fit."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[BaseException] = []

    def on_train_begin(self, logs: Any = None) -> None:
        def settle(error: BaseException) -> BaseException:
            self.shown.append(error)
            return error

        BACKEND.running_fit(self.model).guard(settle)


@pytest.mark.parametrize(
    "hook",
    [
        "on_epoch_begin",
        *("on_train_batch_begin", "on_batch_begin", "on_train_batch_end", "on_batch_end"),
        "on_epoch_end",
    ],
)
def test_an_error_of_a_hook_is_shown_to_the_guard(hook: str) -> None:
    def fail(model: Any) -> None:
        raise KeyError("by the test")

    guarded = Guarded()
    with pytest.raises(KeyError):
        fit("on_train_end", lambda model: None, callbacks=[guarded, Looking(hook, fail)])
    assert [type(error) for error in guarded.shown] == [KeyError]


def test_nothing_is_put_around_hooks_of_a_step_that_no_callback_has() -> None:
    def replaced(model: Any) -> list[str]:
        container = BACKEND.running_fit(model)._frame_callbacks
        return [name for name in vars(container) if name.startswith("on_train_batch")]

    looking = Looking("on_epoch_begin", replaced)
    fit("on_train_end", lambda model: None, callbacks=[Guarded(), looking])
    assert looking.found == [[]]
    has_one = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)
    fit("on_train_end", lambda model: None, callbacks=[Guarded(), has_one, looking])
    assert looking.found[1] == ["on_train_batch_end"]


def test_an_error_of_a_step_is_shown_to_the_guard() -> None:
    def break_step(model: Any) -> None:
        model.train_step = lambda data: {}["by the test"]

    guarded = Guarded()
    with pytest.raises(KeyError):
        fit("on_epoch_begin", break_step, callbacks=[guarded, Looking("on_epoch_begin", break_step)])
    assert [type(error) for error in guarded.shown] == [KeyError]


def test_the_validation_of_a_fit_has_its_own_epoch_iterator() -> None:
    _, (found,) = fit("on_test_begin", keras_fit.evaluation_iterator, validation_data=(X, Y))
    assert isinstance(found, TorchEpochIterator), _changed("Trainer._eval_epoch_iterator is gone")


def test_a_fit_without_steps_does_not_fail() -> None:
    def skip(fitted: Any) -> None:
        BACKEND.running_fit(fitted).feed.epoch_iterator._enumerate_iterator = lambda: iter(())

    history, _ = fit("on_train_begin", skip)
    assert history.epoch == [0], _changed("a fit whose epoch has no step")


def test_an_optimizer_counts_its_steps_in_a_type_that_does_not_tell_the_backend() -> None:
    assert keras.optimizers.SGD().iterations.dtype == "int32", _changed(
        "then a run need not name its backend"
    )
    assert BACKEND.named_in_runs == keras.backend.backend()
