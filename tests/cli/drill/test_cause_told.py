"""``keras-preempt drill`` says from which step on the runs differ, and why."""

from __future__ import annotations

from tests.cli.drill.test_command import drill

UNSEEDED = "1 shuffle(s) of the training data have no seed"
PYTHON = "Python code (tf.py_function, tf.numpy_function or a generator) in an input pipeline (augment)"


def test_a_state_that_is_restored_wrongly_is_seen_at_the_restart_itself():
    result = drill("--at", "step:7", fault="weights")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "From step 7 on (epoch 0, w0) the runs differ: weights; loss" not in result.stdout
    assert "From step 7 on (epoch 0, w0) the runs differ: weights." in result.stdout
    assert "right where it continued, at step 7, restart 1 of 1" in result.stdout
    assert "something was not saved or not restored" in result.stdout


def test_training_that_drifts_after_a_restart_is_reported_with_its_step_and_the_input():
    result = drill(
        "--at", "step:7", "--twice", fault="drift", env={"FAKE_DOUBT": UNSEEDED, "FAKE_SOURCE": PYTHON}
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "After step 9 was equal, from step 10 on (epoch 0, w0) the runs differ: weights" in result.stdout
    assert "3 steps after it continued at step 7, restart 1 of 1" in result.stdout
    assert f"Likely cause: the input. {UNSEEDED}" in result.stdout
    assert f"Other possible cause: {PYTHON}" in result.stdout
    assert "A second undisturbed run was identical" in result.stdout
    assert "drill, once more: undisturbed again" in result.stdout


def test_a_script_that_does_not_repeat_itself_is_found_without_a_third_run():
    result = drill("--at", "step:7", "--twice", fault="unrepeatable")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "After step 0 was equal, from step 1 on (epoch 0, w0) the runs differ: weights" in result.stdout
    assert "That is before the first preemption." in result.stdout
    assert "The script does not repeat itself, with or without preemptions" in result.stdout
    assert "keras.utils.set_random_seed" in result.stdout
    assert "once more" not in result.stdout


def test_a_difference_that_no_step_shows_is_distinguished():
    result = drill("--at", "step:7", fault="history")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "All recorded steps are equal" in result.stdout
    assert "add --twice to find out" in result.stdout
