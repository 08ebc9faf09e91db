"""Workers that read a checkpoint together: each byte of the weights once, and what comes of a failure.

| what happened | test |
|---|---|
| nothing, in a directory and in a bucket, on 2 and 3 workers | ..._are_read_once_..., ..._as_after_a_plain_one |
| saved by another number of workers | ..._another_number_of_workers_... |
| a share cannot be read on one worker | ..._all_workers_read_... |
| a worker dies in the exchange, or fails there | ..._in_the_exchange_... |
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from keras_preempt.checkpoint.failpoints import VARIABLE
from keras_preempt.process.environment import DIRECTORY, RESTORE
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST
from keras_preempt.testing import FakeGcs
from tests.cluster.harness import ClusterResult, run_cluster
from tests.cluster.outcome import assert_identical
from tests.cluster.test_other_workers import Run
from tests.cluster.training import PREEMPTED, SCRIPT, Strike, Training, Undisturbed

TOGETHER = {RESTORE: "exchange"}
APART = {RESTORE: "read"}


def exchanged(training: Training) -> list[bool]:
    """Of each start that restored something, whether the workers did it together; the same on all of them."""
    (told,) = {
        tuple(kinds["restore"][0]["exchanged"] for kinds in training.events(worker) if "restore" in kinds)
        for worker in range(training.workers)
    }
    return list(told)


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.chaos)])
def test_training_after_a_restore_together_is_bit_identical_to_that_after_a_plain_one(
    workers: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    batch = ["--batch", str(4 * workers)]
    training = Training(tmp_path, workers, batch)
    training.preempt(Strike("batch 1 2", (0,)))
    training.preempt(Strike("test 2", (1,)), env=TOGETHER)
    training.finish(env=TOGETHER)
    assert exchanged(training) == [True, True]
    training.assert_same(undisturbed(workers, *batch))


def test_all_workers_read_everything_if_one_cannot_read_its_share(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path, 2)
    training.preempt(Strike("batch 1 2", (0,)))
    failing = {1: {VARIABLE: "restore.before-read=raise"}}
    result = training.finish(env=TOGETHER, per_worker_env=failing)
    assert exchanged(training) == [False]
    for output in result.outputs:
        told = f"The workers could not read {training.checkpoints[0]} together, so each reads all of it: "
        (why,) = (line.partition(told)[2] for line in output.splitlines() if told in line)
        assert "restore.before-read was armed to raise" in why
    training.assert_same(undisturbed(2))


@pytest.mark.chaos  # A worker that fails there is the next one; a loss is in test_losses.py.
def test_a_worker_that_dies_in_the_exchange_is_lost_to_the_others(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path, 2)
    training.preempt(Strike("batch 1 2", (0,)))
    saved = training.checkpoints
    for dying in (1, 0):  # Worker 0 hosts the coordination service.
        killed = {dying: {VARIABLE: "restore.in-exchange=kill"}}
        result = training.start(env=TOGETHER, per_worker_env=killed)
        codes = [EXIT_WORKER_LOST] * 2
        codes[dying] = -signal.SIGKILL
        result.assert_codes(*codes)
        assert result.outputs[1 - dying].count("Another worker is gone, or cannot be reached") == 1
        assert training.checkpoints == saved
    training.finish(env=TOGETHER)
    training.assert_same(undisturbed(2))


def test_a_worker_that_fails_in_the_exchange_ends_the_others_with_its_error(tmp_path: Path) -> None:
    training = Training(tmp_path, 2)
    training.preempt(Strike("batch 1 2", (0,)))
    result = training.start(env=TOGETHER, per_worker_env={1: {VARIABLE: "restore.in-exchange=raise"}})
    result.assert_codes(1)
    assert "Worker 1 has failed, and so all workers end: OSError" in result.outputs[0]
    for output in result.outputs:
        assert "restore.in-exchange was armed to raise" in output
        assert "so each reads all of it" not in output, "no collective works any more"


@pytest.fixture
def gcs() -> Iterator[FakeGcs]:
    with FakeGcs(buckets=("bucket",)) as server:
        yield server


class InABucket:
    """A job of ``train.py`` in a bucket, which counts what its starts read of the weights."""

    def __init__(self, gcs: FakeGcs, folder: Path, workers: int) -> None:
        self.gcs = gcs
        self.output = folder / "output"
        self.folder = folder
        self.workers = workers

    def start(self, code: int, *strikes: Strike, env: dict[str, str] | None = None) -> ClusterResult:
        self.gcs.forget_requests()
        return run_cluster(
            SCRIPT,
            self.workers,
            args=[str(self.output), str(self.folder / "unused"), "--marks", "--strategy", "mwms"],
            env={
                **self.gcs.environment(),
                DIRECTORY: "gs://bucket/run",
                "TRAIN_STRIKES": json.dumps([asdict(strike) for strike in strikes]),
                **(env or {}),
            },
            timeout=240,
        ).assert_codes(code)

    def newest(self) -> dict[str, int]:
        """The files of mirrored tensors of the newest checkpoint, with their sizes."""
        found = {name: seen.size for name, seen in self.gcs.objects("bucket").items() if ".mirrored" in name}
        newest = max(name.rpartition("/")[0] for name in found)
        return {name: size for name, size in found.items() if name.startswith(newest)}

    def read(self) -> int:
        """The bytes of mirrored tensors that the last start has read."""
        return sum(
            request.bytes
            for request in self.gcs.requests
            if request.method == "GET" and "alt=media" in request.path and ".mirrored" in request.target
        )


def test_the_weights_in_a_bucket_are_read_once_by_all_workers_together(
    gcs: FakeGcs, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    job = InABucket(gcs, tmp_path, 2)
    job.start(PREEMPTED, Strike("batch 1 2", (0,), settle=False))
    state = sum(job.newest().values())
    assert job.read() == 0
    job.start(PREEMPTED, Strike("batch 2 2", (0,), settle=False))
    assert job.read() == state
    job.start(0, env=APART)
    assert job.read() == 2 * state
    assert_identical(undisturbed(2).output, job.output, 2)


@pytest.mark.chaos
@pytest.mark.parametrize("workers", [1, 3])
def test_another_number_of_workers_restores_the_same_together_as_apart(workers: int, tmp_path: Path) -> None:
    run = Run(tmp_path / "together")
    run.start(2, preempt_at="batch 1 3")
    apart = run.copy(tmp_path / "apart")
    values = []
    for each, how in ((run, TOGETHER), (apart, APART)):
        result = run_cluster(
            Path(__file__).parent / "scripts" / "other_workers.py",
            workers,
            args=each.command(workers, ""),
            env={**each.environment(workers, ""), **how},
            timeout=240,
        )
        result.assert_ok()
        values.append([each.kept("resumed", workers), each.kept("left", workers)])
    assert [event["exchanged"] for event in run.restores()] == [workers > 1]
    assert [event["exchanged"] for event in apart.restores()] == [False]
    for one, other in zip(*values, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name], name)
