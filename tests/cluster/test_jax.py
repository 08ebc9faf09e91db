"""What can happen to several processes on JAX, where, and under which distribution: a selection that covers the pairs.

`make test` has the first job, of two processes.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from keras_preempt.process.exit_codes import EXIT_WORKER_LOST
from keras_preempt.testing import FakeGcs
from tests.cluster.harness import describe
from tests.cluster.jax_training import JaxTraining, Strike, terminated

RECOVERABLE = {"JAX_ENABLE_RECOVERABILITY": "true"}
TWO_DEVICES = {"JAX_NUM_CPU_DEVICES": "2"}
LAST_OF_EPOCH, LAST = "batch 0 5", "batch 2 5"
AHEAD = 2
"""Steps that one process may have queued when another one, on a busy machine, is struck: see docs/jax.md."""

Undisturbed = Callable[..., JaxTraining]


def everyone(processes: int, place: str) -> tuple[Strike, ...]:
    return tuple(terminated(process, place) for process in range(processes))


def one(process: int, place: str) -> tuple[Strike, ...]:
    return (terminated(process, place),)


MID_EPOCH_THEN_VALIDATION = (one(1, "batch 1 2"), one(0, "test 1 0"))
SCENARIOS: list[tuple[str, int, tuple[str, ...], tuple[tuple[Strike, ...], ...], dict[str, str]]] = [
    ("first step, all", 2, ("dp",), (everyone(2, "batch 0 0"),), {}),
    ("last step of an epoch, process 0", 2, ("dp",), (one(0, LAST_OF_EPOCH),), {}),
    ("validation, process 1", 2, ("dp",), (one(1, "test 1 1"),), {}),
    ("last step, process 0", 2, ("dp",), (one(0, LAST),), {}),
    ("mid-epoch, recoverable", 2, ("dp",), (one(1, "batch 1 2"),), RECOVERABLE),
    ("mid-epoch, then validation", 3, ("dp",), (one(2, "batch 1 2"), one(0, "test 1 0")), {}),
    ("last step of an epoch, all, tf.data", 3, ("dp", "tf"), (everyone(3, LAST_OF_EPOCH),), {}),
    ("mid-epoch, then validation, Grain", 2, ("dp", "grain"), MID_EPOCH_THEN_VALIDATION, {}),
    ("mid-epoch, Grain", 2, ("mp", "grain"), (one(0, "batch 1 2"),), {}),
    ("validation, process 0", 2, ("mp",), (one(0, "test 1 1"),), {}),
    ("first step, process 1", 2, ("mp",), (one(1, "batch 0 0"),), {}),
    ("last step, all, recoverable", 2, ("mp",), (everyone(2, LAST),), RECOVERABLE),
    ("twice at one step", 2, ("mp",), (one(0, "batch 1 2") * 2,), {}),
    ("mid-epoch, tf.data", 2, ("mp", "tf"), (one(0, "batch 1 2"),), {}),
    (
        "mid-epoch, then two at the last step of an epoch",
        3,
        ("mp",),
        (one(1, "batch 0 2"), one(0, LAST_OF_EPOCH) + one(2, LAST_OF_EPOCH)),
        {},
    ),
    ("mid-epoch, then validation", 4, ("mp2",), (one(3, "batch 1 2"), one(0, "test 1 1")), {}),
    ("mid-epoch, two devices each", 2, ("mp2",), (one(1, "batch 1 2"),), TWO_DEVICES),
    ("mid-epoch, one process of two devices", 1, ("dp",), (one(0, "batch 1 2"),), TWO_DEVICES),
    ("validation, one process of two devices", 1, ("mp",), (one(0, "test 0 1"),), TWO_DEVICES),
]
"""What happens to a job of so many processes, incarnation by incarnation, before one that nothing happens to."""


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Gives the job for (processes, kind, env) that nothing happened to; each is run once."""
    done: dict[tuple[object, ...], JaxTraining] = {}

    def get(processes: int, kind: tuple[str, ...], env: dict[str, str]) -> JaxTraining:
        devices = {name: value for name, value in env.items() if name not in RECOVERABLE}
        key = (processes, kind, *devices.items())
        if key not in done:
            training = JaxTraining(tmp_path_factory.mktemp("undisturbed"), processes, *kind, env=devices)
            training.finish()
            done[key] = training
        return done[key]

    return get


def test_a_model_that_is_divided_among_processes_continues_with_the_same_bits_whatever_ends_them(
    tmp_path: Path,
) -> None:
    undisturbed = JaxTraining(tmp_path / "undisturbed", 2, "mp", fresh=False)
    undisturbed.finish()
    training = JaxTraining(tmp_path / "struck", 2, "mp", fresh=False)
    preempted = training.preempt(terminated(1, "batch 1 2"))
    said = [re.findall(r"epoch 1, train batch \d, step (\d+)\.", output) for output in preempted.outputs]
    assert said[0] == said[1], describe(preempted.outputs)
    assert 9 <= int(said[0][0]) <= 9 + AHEAD, describe(preempted.outputs)
    # Each process has written its own part of what is divided.
    (checkpoint,) = training.directory.glob("step-*/*/MANIFEST.json")
    assert len(list(checkpoint.parent.glob("w*.sharded.safetensors"))) == 2

    # The survivor of a killed process says a loss.
    lost = training.start((1, "batch 2 2", "SIGKILL")).assert_codes(EXIT_WORKER_LOST, -signal.SIGKILL)
    assert lost.outputs[0].count("Another worker is gone, or cannot be reached") == 1

    # An error of process 0 ends the other, which waits for it and is told.
    failed = training.start((0, "batch 2 3", "raise")).assert_codes(1)
    error = "ValueError: the user's own error"
    assert f"Worker 0 has failed, and so all workers end: {error}" in failed.outputs[1]
    assert error in failed.outputs[0]

    training.finish_as(undisturbed)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("processes", "kind", "strikes", "env"),
    [pytest.param(*rest, id=f"{'-'.join(rest[1])}-{rest[0]}: {name}") for name, *rest in SCENARIOS],
)
def test_a_preemption_changes_nothing(
    processes: int,
    kind: tuple[str, ...],
    strikes: tuple[tuple[Strike, ...], ...],
    env: dict[str, str],
    tmp_path: Path,
    undisturbed: Undisturbed,
) -> None:
    training = JaxTraining(tmp_path, processes, *kind, env=env)
    for struck in strikes:
        training.preempt(*struck)
    training.finish_as(undisturbed(processes, kind, env))


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("processes", "kind", "place", "env"),
    [
        (2, "dp", "test 1 1", {}),
        (2, "mp", "batch 1 2", RECOVERABLE),
        (3, "dp", "batch 1 0", RECOVERABLE),
        (3, "mp", "batch 2 5", {}),
    ],
)
def test_the_loss_of_a_process_is_told_by_all_others(
    processes: int, kind: str, place: str, env: dict[str, str], tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = JaxTraining(tmp_path, processes, kind, env=env)
    training.preempt(terminated(0, "batch 0 3"))
    result = training.start((1, place, "SIGKILL"))
    survivors = [EXIT_WORKER_LOST] * (processes - 2)
    result.assert_codes(EXIT_WORKER_LOST, -signal.SIGKILL, *survivors)
    training.finish_as(undisturbed(processes, (kind,), env))


@pytest.mark.chaos
def test_the_loss_of_process_0_ends_the_others_and_training_continues(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = JaxTraining(tmp_path, 2, "dp")
    training.preempt(terminated(1, "batch 0 3"))
    result = training.start((0, "batch 1 2", "SIGKILL"))
    assert result.codes[0] == -signal.SIGKILL
    # JAX itself ends a process that has lost the service, within milliseconds.
    aborted = 1 if metadata.version("jax").startswith(("0.7.", "0.8.")) else -signal.SIGABRT
    assert result.codes[1] in (EXIT_WORKER_LOST, aborted), describe(result.outputs)
    training.finish_as(undisturbed(2, ("dp",), {}))


@pytest.mark.chaos
@pytest.mark.parametrize(("failing", "kind", "place"), [(1, "mp", "batch 1 2"), (2, "dp", "test 0 1")])
def test_an_error_of_one_process_is_told_to_all(failing: int, kind: str, place: str, tmp_path: Path) -> None:
    result = JaxTraining(tmp_path, 3, kind).start((failing, place, "raise")).assert_codes(1)
    for output in result.outputs:
        assert "the user's own error" in output, describe(result.outputs)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("kind", "process", "place"),
    [
        ("dp", 0, "before fit"),
        ("dp", 1, "before fit"),
        ("mp", 1, "launch"),
        ("mp", 0, "build"),
        ("dp", 1, "train"),
    ],
)
def test_a_signal_before_training_listens_is_heard(
    kind: str, process: int, place: str, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = JaxTraining(tmp_path, 2, kind)
    result = training.preempt(terminated(process, place))
    assert any(
        "before fit" in output.partition("STRUCK")[2].partition("\n")[2] for output in result.outputs
    ), describe(result.outputs)
    training.finish_as(undisturbed(2, (kind,), {}))


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["dp", "mp"])
def test_a_bucket_serves_as_a_directory_does(kind: str, tmp_path: Path, undisturbed: Undisturbed) -> None:
    with FakeGcs(buckets=("bucket",)) as gcs:
        training = JaxTraining(tmp_path, 2, kind, env=gcs.environment(), url="gs://bucket/run")
        training.preempt(terminated(1, "batch 1 2"))
        training.finish_as(undisturbed(2, (kind,), {}))
        assert "Continuing from step-000000" in training.results[-1].outputs[0]
    assert not training.directory.exists()


@pytest.mark.chaos
@pytest.mark.parametrize(("kind", "process"), [("dp", 0), ("mp", 1)])
def test_ctrl_c_at_one_process_saves_on_all(
    kind: str, process: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = JaxTraining(tmp_path, 2, kind)
    result = training.start((process, "batch 1 2", "SIGINT"))
    result.assert_codes(-signal.SIGINT)
    for output in result.outputs:
        assert "Interrupted: its checkpoint is step-000000" in output, describe(result.outputs)
    training.finish_as(undisturbed(2, (kind,), {}))


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [("mp", 2, 1), ("mp", 2, 3), ("mp", 3, 2), ("mp", 1, 2), ("dp", 2, 3), ("dp", 3, 1), ("dp", 1, 2)],
)
def test_another_number_of_processes_begins_with_the_same_values(
    kind: str, before: int, after: int, tmp_path: Path
) -> None:
    training = JaxTraining(tmp_path / "before", before, kind)
    training.preempt(terminated(before - 1, "batch 0 5"))
    others = JaxTraining(tmp_path / "after", after, kind)
    shutil.copytree(training.directory, others.directory)
    training.finish()
    others.finish()
    for process in range(after):
        with np.load(training.restored()) as expected, np.load(others.restored(process)) as found:
            assert set(found.files) == set(expected.files)
            for name in expected.files:
                np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


ACROSS = {(2, "2"): "2 x 2", (1, "1"): "1 x 1", (1, "2"): "1 x 2", (3, "1"): "3 x 1"}
"""Processes and devices of each."""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((2, "2"), (1, "1"), id="2 x 2, then 1 x 1"),
        *(
            pytest.param(before, after, id=f"{ACROSS[before]}, then {ACROSS[after]}", marks=pytest.mark.chaos)
            for before in ACROSS
            for after in ACROSS
            if before != after and (before, after) != ((2, "2"), (1, "1"))
        ),
    ],
)
def test_where_every_process_brings_all_rows_of_the_mesh_no_sample_is_lost_on_another(
    before: tuple[int, str], after: tuple[int, str], tmp_path: Path
) -> None:
    env = [{"JAX_NUM_CPU_DEVICES": devices} for _, devices in (before, after)]
    training = JaxTraining(tmp_path, before[0], "across", env=env[0])
    preempted = training.preempt(terminated(before[0] - 1, "batch 1 2"))
    (batch,) = set(re.findall(r"epoch 1, train batch (\d), step", "".join(preempted.outputs)))
    others = JaxTraining(tmp_path, after[0], "across", env=env[1])
    resumed = others.finish()
    assert f"input at sample {24 * int(batch)} of epoch 1" in resumed.outputs[0], describe(resumed.outputs)
