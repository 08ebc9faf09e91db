"""What another number of workers may change about a run, and what it may not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.checkpoint.other_workers import Setup, differences

SETUP = Setup(workers=2, replicas=2, global_batch=8, batches=6, built_from=1)


def differ(old: Setup = SETUP, **changes: Any) -> list[str]:
    return [name for name, _, _ in differences(old.to_json(), replace(old, **changes).to_json())]


def test_as_many_workers_train_on_the_same_batches() -> None:
    assert differ() == []
    assert differ(global_batch=16, batches=3) == ["global_batch", "batches"]
    assert differ(batches=5) == ["batches"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"global_batch": 12, "batches": 4},
        {"global_batch": 10, "batches": 4},  # 48 samples, the last part of a batch dropped
        {"global_batch": 10, "batches": 5},  # or kept
        {"global_batch": 12},  # steps_per_epoch of endless data
        {"global_batch": None, "batches": 4},
        {"batches": None},
    ],
)
def test_other_workers_may_have_other_batches_of_the_same_samples(changes: dict[str, Any]) -> None:
    for workers in ({"workers": 3, "replicas": 3}, {"replicas": 4}, {"workers": 1}):
        assert differ(**workers, **changes) == []


def test_other_workers_do_not_excuse_other_data() -> None:
    assert differ(workers=3, replicas=3, batches=60) == ["batches"]
    assert differ(workers=3, replicas=3, batches=8, global_batch=12) == ["global_batch", "batches"]


def test_how_a_strategy_builds_a_model_is_no_difference() -> None:
    assert differ(built_from=0, workers=1, replicas=1) == []


def test_it_reads_back_what_it_wrote() -> None:
    for setup in (SETUP, replace(SETUP, global_batch=None, batches=None)):
        assert Setup.from_json(setup.to_json(), "file") == setup


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {**SETUP.to_json(), "workers": 0},
        {**SETUP.to_json(), "workers": None},
        {**SETUP.to_json(), "global_batch": -1},
        {**SETUP.to_json(), "batches": "6"},
        {**SETUP.to_json(), "built_from": 2},
        {**SETUP.to_json(), "more": 1},
    ],
)
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(CorruptCheckpoint):
        Setup.from_json(value, "file")
