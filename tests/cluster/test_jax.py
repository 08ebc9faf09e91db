"""Several processes on JAX stop together, end with each other, and continue as if nothing had happened.

The whole of what can happen to them is in test_jax_matrix.py.
"""

from __future__ import annotations

import signal
from pathlib import Path

from keras_preempt.process.exit_codes import EXIT_WORKER_LOST
from tests.cluster.harness import describe
from tests.cluster.jax_training import JaxTraining, terminated


def test_a_model_that_is_divided_among_processes_is_preempted_and_continues_with_the_same_bits(
    tmp_path: Path,
) -> None:
    undisturbed = JaxTraining(tmp_path / "undisturbed", 2, "mp")
    undisturbed.finish()
    training = JaxTraining(tmp_path / "preempted", 2, "mp")
    result = training.preempt(terminated(1, "batch 1 2"))
    for output in result.outputs:
        assert "epoch 1, train batch 3, step 9" in output, describe(result.outputs)
    # Each process has written its own part of what is divided.
    (checkpoint,) = training.directory.glob("step-*/*/MANIFEST.json")
    assert len(list(checkpoint.parent.glob("w*.sharded.safetensors"))) == 2
    training.finish()
    training.assert_same_end(undisturbed)


def test_the_survivor_of_a_killed_process_says_a_loss_and_training_continues_from_the_last_save(
    tmp_path: Path,
) -> None:
    undisturbed = JaxTraining(tmp_path / "undisturbed", 2, "dp")
    undisturbed.finish()
    training = JaxTraining(tmp_path / "killed", 2, "dp")
    training.preempt(terminated(0, "batch 0 3"))
    result = training.start((1, "batch 1 2", "SIGKILL"))
    result.assert_codes(EXIT_WORKER_LOST, -signal.SIGKILL)
    assert result.outputs[0].count("Another worker is gone, or cannot be reached") == 1
    training.finish()
    training.assert_same_end(undisturbed)


def test_an_error_of_process_0_ends_the_other_which_waits_for_it_and_is_told(tmp_path: Path) -> None:
    result = JaxTraining(tmp_path, 2, "dp").start((0, "batch 0 3", "raise"))
    result.assert_codes(1)
    assert (
        "Worker 0 has failed, and so all workers end: ValueError: the user's own error" in result.outputs[1]
    )
    assert "ValueError: the user's own error" in result.outputs[0]
