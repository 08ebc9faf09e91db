"""Workers that read a checkpoint together: each byte of the weights once, and what comes of a failure or a notice.

| what happened | test |
|---|---|
| nothing, in a directory and in a bucket, on 2 and 3 workers | ..._are_read_once_..., ..._as_after_a_plain_one |
| saved by another number of workers | ..._another_number_of_workers_... |
| a share cannot be read on one worker; a worker fails in the exchange, or dies there | ..._lose_nothing, ..._lost_... |
| notices: before the reading, while another one reads, before the callback listens | ..._lose_nothing |
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from keras_preempt.checkpoint.failpoints import VARIABLE
from keras_preempt.process.environment import DIRECTORY, RESTORE
from keras_preempt.process.exit_codes import EXIT_WORKER_LOST
from keras_preempt.testing import FakeGcs
from tests.cluster.harness import start_cluster
from tests.cluster.test_other_workers import Run, assert_epochs_whole, assert_regrouped
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


@pytest.mark.chaos
@pytest.mark.parametrize("workers", [2, 3])
def test_training_after_a_restore_together_is_bit_identical_to_that_after_a_plain_one(
    workers: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    batch = ["--batch", str(4 * workers)]
    training = Training(tmp_path, workers, batch)
    training.preempt(Strike("batch 1 2", (0,)))
    training.preempt(Strike("test 2", (1,)), env=TOGETHER)
    training.finish_as(undisturbed(workers, *batch), env=TOGETHER)
    assert exchanged(training) == [True, True]


def _wait_until_stopped(pid: int, timeout: float = 120.0) -> None:
    limit = time.monotonic() + timeout
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < limit, f"process {pid} was not stopped"
        time.sleep(0.05)  # Somebody else's process: there is nothing to wait on.


def test_restarts_that_fail_or_hear_a_notice_while_they_restore_lose_nothing(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path, 2)
    with start_cluster(SCRIPT, 2, args=[*training.command, "--slow", "0.1"]) as running:
        running.wait_for_line(1, "AT done 0 3")
        running.signal(1, signal.SIGTERM)
        training.results.append(running.wait().assert_codes(PREEMPTED))
    done = len(training.steps(0))
    assert done < 18

    # One that fails in the exchange ends the other with its error: in the first round of that of the part lists, and
    # in the first of that of the weights.
    for hit in (1, 3):
        failing = {1: {VARIABLE: f"restore.in-exchange=raise:{hit}"}}
        result = training.start(env=TOGETHER, per_worker_env=failing)
        result.assert_codes(1)
        assert "Worker 1 has failed, and so all workers end: OSError" in result.outputs[0]
        for output in result.outputs:
            assert "restore.in-exchange was armed to raise" in output
            assert "so each reads all of it" not in output, "no collective works any more"

    training.preempt(per_worker_env={1: {VARIABLE: "restore.before-read=sigterm"}})
    stop = {1: {VARIABLE: "restore.after-read=stop"}}
    with start_cluster(SCRIPT, 2, args=training.command, per_worker_env=stop) as running:
        _wait_until_stopped(running.cluster.pids[1])
        running.signal(0, signal.SIGTERM)
        running.signal(1, signal.SIGCONT)
        training.results.append(running.wait().assert_codes(PREEMPTED))
    assert len(training.steps(0)) == done

    # Where one cannot read its share, all read everything.
    saved = training.checkpoints[-1]
    result = training.preempt(
        Strike("train_begin", (1,), settle=False),
        env=TOGETHER,
        per_worker_env={1: {VARIABLE: "restore.before-read=raise"}},
    )
    assert exchanged(training)[-1] is False
    for output in result.outputs:
        told = f"The workers could not read {saved} together, so each reads all of it: "
        (why,) = (line.partition(told)[2] for line in output.splitlines() if told in line)
        assert "restore.before-read was armed to raise" in why
    training.finish_as(undisturbed(2), env=TOGETHER)
    assert exchanged(training)[-1] is True


@pytest.mark.chaos  # A worker that fails there is the next one; a loss is in test_losses.py.
def test_a_worker_that_dies_in_the_exchange_is_lost_to_the_others(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    training = Training(tmp_path, 2)
    training.preempt(Strike("batch 1 2", (0,)))
    saved = training.checkpoints
    for dying, hit in ((1, 1), (1, 3), (0, 1), (0, 3)):  # Worker 0 hosts the coordination service.
        killed = {dying: {VARIABLE: f"restore.in-exchange=kill:{hit}"}}
        result = training.start(env=TOGETHER, per_worker_env=killed)
        codes = [EXIT_WORKER_LOST] * 2
        codes[dying] = -signal.SIGKILL
        result.assert_codes(*codes)
        assert result.outputs[1 - dying].count("Another worker is gone, or cannot be reached") == 1
        assert training.checkpoints == saved
    training.finish_as(undisturbed(2), env=TOGETHER)


@pytest.fixture
def gcs() -> Iterator[FakeGcs]:
    with FakeGcs(buckets=("bucket",)) as server:
        yield server


def weights_of_the_newest(gcs: FakeGcs) -> tuple[str, int]:
    """Where the newest checkpoint is, and the bytes of its mirrored tensors."""
    found = {name: seen.size for name, seen in gcs.objects("bucket").items() if ".mirrored" in name}
    newest = max(name.rpartition("/")[0] for name in found)
    return newest, sum(size for name, size in found.items() if name.startswith(newest))


def read_of(gcs: FakeGcs, checkpoint: str, kind: str) -> list[int]:
    """The bytes of each reading of a file of that kind in that checkpoint; another one may follow in the same start."""
    return [
        request.bytes
        for request in gcs.requests
        if request.method == "GET"
        and "alt=media" in request.path
        and kind in request.target
        and checkpoint in unquote(request.target)
    ]


@pytest.mark.parametrize(("how", "times"), [({}, 1), pytest.param(APART, 2, marks=pytest.mark.chaos)])
def test_the_weights_and_part_lists_in_a_bucket_are_read_once_by_all_workers_together(
    how: dict[str, str], times: int, gcs: FakeGcs, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    env = {**gcs.environment(), DIRECTORY: "gs://bucket/run", **how}
    training = Training(tmp_path, 2)
    training.start(Strike("batch 1 2", (0,), settle=False), env=env).assert_codes(PREEMPTED)
    saved, weights = weights_of_the_newest(gcs)
    assert read_of(gcs, saved, ".mirrored") == []
    lists = len(read_of(gcs, saved, ".part.json"))
    assert lists == 2  # By the one that has committed them.
    training.start(Strike("train_begin", (0,), settle=False), env=env).assert_codes(PREEMPTED)
    assert sum(read_of(gcs, saved, ".mirrored")) == times * weights
    # Apart, each reads its own and those of the writers: of worker 1 alone, since worker 0 was under notice.
    assert len(read_of(gcs, saved, ".part.json")) - lists == {1: 2, 2: 3}[times]
    training.finish_as(undisturbed(2), env=env)


@pytest.mark.chaos
@pytest.mark.parametrize("workers", [1, 3])
def test_another_number_of_workers_restores_the_same_together_as_apart(workers: int, tmp_path: Path) -> None:
    run = Run(tmp_path / "together")
    run.start(2, preempt_at="batch 1 3")
    two = run.kept("left", 2)
    apart = run.copy(tmp_path / "apart")
    values = []
    for each, how in ((run, TOGETHER), (apart, APART)):
        each.start(workers, env=how)
        values.append([each.kept("resumed", workers), each.kept("left", workers)])
    assert_regrouped(two, run.kept("resumed", workers))
    assert_epochs_whole(run.history())
    assert [event["exchanged"] for event in run.restores()] == [workers > 1]
    assert [event["exchanged"] for event in apart.restores()] == [False]
    for one, other in zip(*values, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name], name)
