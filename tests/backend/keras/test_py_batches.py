"""Keras asks a PyDataset for the rest of an epoch alone, in the order that it would have drawn itself."""

from __future__ import annotations

import pickle
import random
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from keras_preempt.backend.keras import py_batches
from tests.backend.programs import python

STEPS = 7


class Numbers(keras.utils.PyDataset):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asked: list[int] = []

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return (np.array([index]),)


def drawn(adapter: Any) -> list[int]:
    return [int(batch[0][0]) for batch in adapter._get_iterator()]


def epoch(adapter: Any, seed: int, without: int = 0) -> tuple[list[int], Any]:
    """Returns the batches of an epoch whose order is drawn from that seed, and Python's random state after it."""
    random.seed(seed)
    if without:
        assert py_batches.leave_out(adapter, without)
    adapter.on_epoch_begin()
    batches = drawn(adapter)
    after = random.getstate()
    adapter.on_epoch_end()
    return batches, after


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("options", [{}, {"workers": 2}])
def test_the_rest_of_an_epoch_is_what_keras_would_have_asked_for(options: Any, shuffle: bool) -> None:
    check_the_rest(options, shuffle)


def test_so_it_is_with_processes_of_keras() -> None:
    # Keras forks them, and a fork of a process with the threads of other tests may stand still for ever.
    program = "\n".join(
        [
            f"import sys; sys.path.insert(0, {str(Path(__file__).parents[3])!r})",
            "from tests.backend.keras.test_py_batches import check_the_rest",
            "check_the_rest({'workers': 2, 'use_multiprocessing': True}, True, without=(4,))",
            "print('same')",
        ]
    )
    done = python(program)
    assert done.stdout.split()[-1:] == ["same"], done.stderr


def check_the_rest(
    options: dict[str, Any], shuffle: bool, without: tuple[int, ...] = (1, 4, STEPS - 1, STEPS)
) -> None:
    adapter = PyDatasetAdapter(Numbers(**options), shuffle=shuffle)
    assert py_batches.has_workers(adapter) == bool(options)
    whole, after = epoch(adapter, 3)
    assert sorted(whole) == list(range(STEPS))
    assert (whole == sorted(whole)) == (not shuffle)
    for left_out in without:
        adapter.py_dataset.asked.clear()
        rest, rest_after = epoch(adapter, 3, left_out)
        assert (rest, rest_after) == (whole[left_out:], after), left_out
        if not options.get("use_multiprocessing"):
            assert sorted(adapter.py_dataset.asked) == sorted(whole[left_out:])
        assert epoch(adapter, 3) == (whole, after), "the next epoch is not whole"


@pytest.mark.parametrize("shuffle", [True, False])
def test_what_workers_have_fetched_to_build_the_model_is_not_trained_on(shuffle: bool) -> None:
    adapter = PyDatasetAdapter(Numbers(workers=2), shuffle=shuffle)
    random.seed(1)
    adapter.on_epoch_begin()
    next(adapter._get_iterator())
    adapter.on_epoch_end()  # As `reset` of Keras' epoch iterator calls it.
    assert py_batches.forget_fetched(adapter) > 0
    for seed in (2, 3):
        assert epoch(adapter, seed) == epoch(PyDatasetAdapter(Numbers(), shuffle=shuffle), seed)


def test_keras_loses_batches_at_the_end_of_an_epoch_that_began_with_fetched_ones() -> None:
    """Why they are dropped: plain Keras, with a thread that is as slow as on a busy machine."""
    adapter = PyDatasetAdapter(Numbers(workers=2, max_queue_size=2), shuffle=False)
    adapter.on_epoch_begin()
    assert int(next(adapter._get_iterator())[0][0]) == 0
    adapter.on_epoch_end()
    submit = adapter.enqueuer.future_queue.put

    def slowly(*arguments: Any, **options: Any) -> None:
        time.sleep(0.05)
        submit(*arguments, **options)

    adapter.enqueuer.future_queue.put = slowly
    fetched = adapter.enqueuer.ready_queue.qsize()
    given = epoch(adapter, 2)[0]
    assert given == [*range(1, 1 + fetched), *range(STEPS - fetched)]
    assert adapter.enqueuer.ready_queue.qsize() < fetched
    adapter.enqueuer.stop()


@pytest.mark.timeout(60)
def test_after_all_batches_were_drawn_and_not_one_more_the_next_iterator_has_them_again() -> None:
    adapter = PyDatasetAdapter(Numbers(workers=2), shuffle=False)
    for _ in range(2):
        batches = adapter._get_iterator()
        assert [int(next(batches)[0][0]) for _ in range(STEPS)] == list(range(STEPS))
        py_batches.stop_workers(adapter)
    py_batches.stop_workers(PyDatasetAdapter(Numbers(), shuffle=False))  # It has none.


def test_what_workers_have_fetched_without_an_end_is_kept() -> None:
    class Endless(Numbers):
        num_batches = None

    adapter = PyDatasetAdapter(Endless(workers=2), shuffle=False)
    adapter.on_epoch_begin()
    batches = adapter._get_iterator()
    first = next(batches)
    adapter.on_epoch_end()
    py_batches.forget_fetched(adapter)
    adapter.on_epoch_begin()
    assert [int(each[0][0]) for each in (first, next(batches), next(batches))] == [0, 1, 2]
    adapter.on_epoch_end()


def test_class_weights_are_applied_to_the_rest() -> None:
    class Pairs(Numbers):
        def __getitem__(self, index: int) -> Any:
            return np.array([index]), np.array([index % 2])

    adapter = PyDatasetAdapter(Pairs(), shuffle=False, class_weight={0: 1.0, 1: 5.0})
    py_batches.leave_out(adapter, 4)
    assert [float(batch[2][0]) for batch in adapter._get_iterator()] == [1.0, 5.0, 1.0]


@pytest.mark.parametrize("name", ["_finite_generator", "_standardize_batch"])
def test_an_adapter_of_another_keras_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = PyDatasetAdapter(Numbers(), shuffle=True)
    monkeypatch.delattr(PyDatasetAdapter, name)
    before = random.getstate()
    assert not py_batches.leave_out(adapter, 2)
    assert random.getstate() == before


def test_worker_processes_get_the_rest() -> None:
    rest = pickle.loads(pickle.dumps(py_batches.RestOfEpoch([10, 11, 12], [2, 0])))
    assert (rest.num_batches, rest[0], rest[1]) == (2, 12, 10)
