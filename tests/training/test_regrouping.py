"""One worker's part of a checkpoint, made from the parts of workers of another number."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt.checkpoint.reader import Loaded, WorkerState
from keras_preempt.checkpoint.setup import Setup
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state.model import ModelState
from keras_preempt.state.regroup import Rule
from keras_preempt.state.regrouping import Regrouped, regroup_checkpoint
from tests.checkpoint.builders import held

ALONE = Setup(workers=1, replicas=1, global_batch=8, batches=6, built_from=0)
POSITION = {"epoch": 2, "phase": "train", "batch": 3, "step": 15}
PLACE = {"iterators": 1, "drawn_before": [], "batches": 3, "current": True, "num_batches": 6}


@pytest.fixture(scope="module")
def model_state() -> ModelState:
    keras.utils.clear_session()
    layers = [
        keras.layers.Dense(3, trainable=False),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5, seed=1),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential([keras.Input((2,)), *layers])
    optimizer = keras.optimizers.Adam(gradient_accumulation_steps=4)
    model.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
    model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0)
    return ModelState(model, tf.distribute.get_strategy())


def found(model_state: ModelState, present: tuple[int, ...], members: int) -> Loaded:
    """A checkpoint of workers with one replica each, on which every local value is a hundredfold of the number."""
    values = model_state.capture().whole
    parts = ("moving", "metrics/", "seed_generator", "dense/kernel", "dense/bias", "gradient_accumulator")
    names = [name for name in values if any(part in name for part in parts)]
    workers = []
    for member in present:
        local: dict[str, Any] = {
            f"{name}@0": np.full_like(values[name], 7 if "dense/" in name else 100 * (member + 1))
            for name in names
        }
        local["random/numpy/0"] = np.array([member])
        place = {"position": PLACE, "way": "replay", "snapshot": {"drawn": 2, "part": [member, members]}}
        state = {"input": place, "member": member}
        workers.append(WorkerState(member, local, state))
    manifest = replace(
        held(members, set(present)),
        step=15,
        position=POSITION,
        kind="preemption",
        reason="SIGTERM",
        writers=(present[0],),
    )
    tensors = {name: value for name, value in values.items() if name not in names}
    old = replace(ALONE, workers=members, replicas=members)
    return Loaded(
        manifest, WorkerValues(tensors, workers[0].local), workers[0].state, None, old, tuple(workers)
    )


def regrouped(state: ModelState, old: Loaded, setup: Setup, member: int = 0) -> Regrouped:
    return regroup_checkpoint(old, state, member, setup, steps_per_execution=1, num_batches=setup.batches)


def test_three_workers_become_one_by_the_rules(model_state: ModelState) -> None:
    result = regrouped(model_state, found(model_state, (0, 1, 2), 3), ALONE)
    before = model_state.capture().whole
    assert result.loaded.values.whole.keys() >= before.keys()
    for name, value in before.items():
        restored = result.loaded.values.whole[name]
        assert (restored.dtype, restored.shape) == (value.dtype, value.shape)
        if "metrics/" in name or "gradient_accumulator" in name:
            assert (restored == 600).all(), name
        elif "moving" in name:
            assert (restored == 200).all(), name
        elif "seed_generator" in name:
            assert (restored == 100).all(), name
        elif "dense/" in name:
            assert (restored == 7).all(), name
        else:
            np.testing.assert_array_equal(restored, value)
    assert result.treatment["averaged"] == 2
    assert result.treatment["copied, being alike"] == 2
    totals = ("metrics/", "gradient_accumulator")
    assert all(any(part in name for name in before) for part in totals)
    assert result.treatment["added up"] == sum(any(part in name for part in totals) for name in before)
    assert result.summary == (
        "Restored on 1 worker a checkpoint of 3 workers: weights exact; metrics keep their totals; "
        "BatchNormalization statistics averaged; input at sample 24 of epoch 2; NOT bit-identical from here."
    )


@pytest.mark.parametrize(
    ("present", "members", "sources"),
    [((0, 1), 2, [0, 1, 0, 1, 0]), ((0, 2), 3, [0, 2, 2, 2])],
    ids=["modulo the old number", "others are missing"],
)
def test_a_worker_goes_on_as_the_one_of_its_number_and_not_from_a_snapshot_of_another_division_of_the_data(
    present: tuple[int, ...], members: int, sources: list[int], model_state: ModelState
) -> None:
    checkpoint = found(model_state, present, members)
    assert "snapshot" in checkpoint.workers[0].state["input"]
    more = replace(ALONE, workers=len(sources), replicas=len(sources))
    for member, source in enumerate(sources):
        loaded = regrouped(model_state, checkpoint, more, member).loaded
        assert loaded.state["member"] == source
        assert loaded.values.local["random/numpy/0"].tolist() == [source]
        assert not any("@" in name for name in loaded.values.local), "values of the old replicas"
        assert loaded.state["input"]["way"] == "replay"
        assert "snapshot" not in loaded.state["input"]


def test_what_a_missing_part_costs_is_said(model_state: ModelState) -> None:
    result = regrouped(model_state, found(model_state, (0, 2), 3), ALONE)
    moving = next(name for name in result.loaded.values.whole if "moving_mean" in name)
    assert (result.loaded.values.whole[moving] == 200).all()
    metric = next(name for name in result.loaded.values.whole if "metrics/" in name)
    assert (result.loaded.values.whole[metric] == 400).all()
    assert "worker 1 had not written their own part" in result.summary


def test_a_scaled_batch_goes_on_at_the_sample(model_state: ModelState) -> None:
    scaled = replace(ALONE, global_batch=16, batches=3)
    result = regrouped(model_state, found(model_state, (0, 1), 2), scaled)
    assert result.loaded.manifest.position == {**POSITION, "batch": 1}
    assert result.loaded.state["input"]["position"]["batches"] == 1
    assert "input at sample 16 of epoch 2; used again before it: 8 samples" in result.summary


def test_as_many_replicas_on_other_workers_keep_every_value(model_state: ModelState) -> None:
    checkpoint = found(model_state, (0,), 1)
    assert checkpoint.saved_on is not None
    checkpoint = replace(checkpoint, saved_on=replace(checkpoint.saved_on, built_from=1))
    result = regrouped(model_state, checkpoint, ALONE)
    assert set(result.treatment) == {"kept as they were"}
    assert "weights and what each replica holds exact" in result.summary


# The variables of a worker with two replicas, of which nothing is asked but how they are kept.
TWO_REPLICAS_HERE: Any = SimpleNamespace(
    mirrored={},
    rules=lambda: {"metric": Rule.TOTAL, "state": Rule.OWN, "keras/global_seed": Rule.OWN},
    replicas_here=lambda name: 1 if name == "keras/global_seed" else 2,
)


def test_each_replica_of_each_worker_gets_its_own_value(model_state: ModelState) -> None:
    """Two workers of one replica become two of two replicas: 7 on the first and nothing on the second is shared."""
    checkpoint = found(model_state, (0, 1), 2)
    workers = []
    for own in checkpoint.workers:
        number = np.array(own.member, np.uint32)
        metric = np.array(7 * (1 - own.member), np.int32)
        local = {"metric@0": metric, "state@0": number, "keras/global_seed@0": number}
        workers.append(replace(own, local=local))
    checkpoint = replace(checkpoint, values=WorkerValues(), workers=tuple(workers))
    setup = replace(ALONE, workers=2, replicas=4)
    values = [
        regrouped(TWO_REPLICAS_HERE, checkpoint, setup, member).loaded.values.local for member in range(2)
    ]
    assert [int(own[f"metric@{n}"]) for own in values for n in range(2)] == [2, 2, 2, 1]
    assert [int(own[f"state@{n}"]) for own in values for n in range(2)] == [0, 1, 0, 1]
    assert [int(own["keras/global_seed@0"]) for own in values] == [0, 1]
