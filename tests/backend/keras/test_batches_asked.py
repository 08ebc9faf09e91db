"""What training shows of the batches of a PyDataset: every one passes the method that is watched."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from keras_preempt.backend.keras import batches_asked
from keras_preempt.backend.keras.batches_asked import BatchesAsked
from keras_preempt.backend.keras.replacing import Replacements

STEPS = 5


class Numbers(keras.utils.PyDataset):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        return (np.array([index]),)


def asked(
    before: list[int], epoch: list[int], resumed: Callable[[BatchesAsked], None] = lambda _: None
) -> tuple[bool, bool]:
    """Whether batches are found to be independent, before the end of the first epoch, and others at its end."""
    found = BatchesAsked()
    for batch in before:
        found.given(np.array([batch]))
    resumed(found)
    found.begin_epoch()
    for batch in epoch:
        found.given(np.array([batch]))
    independent = found.independent
    return independent, found.end_epoch(STEPS)


@pytest.mark.parametrize(
    ("before", "epoch", "expected"),
    [
        ([0, 1], [4, 1], (True, False)),
        ([0, 1], [4, 1, 2, 0, 3], (True, False)),
        ([0, 1], [9, 9, 9, 9, 9], (False, True)),
        ([0, 1], [0, 9, 9, 9, 9], (True, True)),
        ([0, 1], [9, 9], (False, False)),
        ([], [0, 1, 2, 3, 4], (False, False)),
    ],
    ids=["a part", "all", "others", "one of two", "ended early", "nothing before"],
)
def test_what_came_before_the_first_epoch_and_comes_again_shows_that_batches_are_independent(
    before: list[int], epoch: list[int], expected: tuple[bool, bool]
) -> None:
    assert asked(before, epoch) == expected


def test_an_epoch_that_an_earlier_process_began_is_not_said_to_have_others() -> None:
    assert asked([0, 1], [9] * STEPS, lambda found: found.resume(False)) == (False, False)
    assert asked([0, 1], [9], lambda found: found.resume(True)) == (True, False)


def test_all_of_a_batch_is_compared_and_not_what_is_looked_at_first_alone() -> None:
    first, second = np.zeros(10_000), np.zeros(10_000)
    second[1] = 1.0
    found = BatchesAsked()
    found.given(first)
    found.begin_epoch()
    found.given(second)
    assert not found.independent
    found.given(first)
    assert found.independent


@pytest.fixture
def nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callbacks of other tests may not have been collected yet, and watch for as long as they live."""
    monkeypatch.setattr(
        PyDatasetAdapter, "_standardize_batch", inspect.unwrap(PyDatasetAdapter._standardize_batch)
    )
    monkeypatch.setattr(batches_asked, "_watch", Replacements(batches_asked._see_every_batch))


@pytest.mark.usefixtures("nobody_watches")
@pytest.mark.parametrize("options", [{}, {"workers": 2}])
def test_canary_every_batch_passes_the_method(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[int] = []
    monkeypatch.setattr(BatchesAsked, "given", lambda self, batch: passed.append(int(batch[0][0])))
    end = batches_asked.watch()
    adapter = PyDatasetAdapter(Numbers(**options), shuffle=True)
    adapter.on_epoch_begin()
    drawn = [int(batch[0][0]) for batch in adapter._get_iterator()]
    adapter.on_epoch_end()
    assert passed == drawn
    end()
    assert list(PyDatasetAdapter(Numbers())._get_iterator())
    assert passed == drawn


@pytest.mark.usefixtures("nobody_watches")
def test_keras_own_method_returns_with_the_last_watcher_and_a_foreign_one_stays() -> None:
    own = PyDatasetAdapter._standardize_batch
    first, second = batches_asked.watch(), batches_asked.watch()
    first()
    assert PyDatasetAdapter._standardize_batch is not own
    second()
    assert PyDatasetAdapter._standardize_batch is own
    end = batches_asked.watch()
    ours = PyDatasetAdapter._standardize_batch
    foreign = PyDatasetAdapter._standardize_batch = lambda self, batch: ours(self, batch)
    end()
    assert PyDatasetAdapter._standardize_batch is foreign
    PyDatasetAdapter._standardize_batch = own
