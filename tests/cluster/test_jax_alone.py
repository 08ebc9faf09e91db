"""Processes of one job of JAX for which no distribution is set: each trains a model of its own, and saves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.harness import describe
from tests.cluster.jax_training import JaxTraining, terminated

RECOVERABLE = {"JAX_ENABLE_RECOVERABILITY": "true"}
"""Else the end of one process is that of all. JAX reads it when it is imported, so only in a fresh process."""

WARNED = (
    "jax.distributed has connected 2 workers, and this one, process {}, trains a model of its own, since that was made "
    "under no distribution. To train one model on all of them, set a keras.distribution.DataParallel()"
)
REFUSED = "or give each worker its own directory, with jax.process_index() in its name."


def test_each_process_saves_and_continues_its_own_model(tmp_path: Path) -> None:
    undisturbed = JaxTraining(tmp_path / "undisturbed", 2, "alone", "own", fresh=False)
    undisturbed.finish()
    training = JaxTraining(tmp_path / "struck", 2, "alone", "own", fresh=False)
    # Not at the same step: neither waits for the other.
    preempted = training.preempt(terminated(1, "batch 1 2"), terminated(0, "batch 1 4"))
    for process, output in enumerate(preempted.outputs):
        assert WARNED.format(process) in output, describe(preempted.outputs)
    training.finish_as(undisturbed)
    assert all("Continuing from step-" in output for output in training.results[-1].outputs)


def test_in_one_directory_one_process_is_refused_and_the_other_trains_and_saves(tmp_path: Path) -> None:
    training = JaxTraining(tmp_path, 2, "alone", env=RECOVERABLE)
    result = training.start()
    assert sorted(result.codes) == [0, 1], describe(result.outputs)
    refused = result.codes.index(1)
    assert REFUSED in result.outputs[refused]
    assert WARNED.format(1 - refused) in result.outputs[1 - refused]
    assert not any("NOT saved" in output for output in result.outputs)
    assert list(training.directory.glob("step-00000018/*/MANIFEST.json"))


@pytest.mark.chaos
def test_a_process_that_leaves_a_recoverable_job_takes_none_with_it(tmp_path: Path) -> None:
    undisturbed = JaxTraining(tmp_path / "undisturbed", 2, "alone", "own", env=RECOVERABLE)
    undisturbed.finish()
    training = JaxTraining(tmp_path / "struck", 2, "alone", "own", env=RECOVERABLE)
    training.start(terminated(1, "batch 1 2")).assert_codes(0, 75)
    training.finish_as(undisturbed)
