"""``keras-preempt drill`` says from which step on the runs differ, and why."""

from __future__ import annotations

import re

from tests.cli.drill.test_command import drill

UNSEEDED = "1 shuffle(s) of the training data have no seed"
PYTHON = "Python code (tf.py_function, tf.numpy_function or a generator) in an input pipeline (augment)"


def test_a_value_that_is_restored_wrongly_is_named_and_seen_at_the_restart_itself():
    told = drill("--workers", "2", "--at", "step:7", code=1, fault="weights").stdout
    assert "From step 7 on (epoch 0, w0) the runs differ: weights; loss" not in told
    assert "From step 7 on (epoch 0, w0) the runs differ: weights." in told
    assert "right where it continued, at step 7, restart 1 of 1" in told
    assert "something was not saved or not restored" in told
    assert "different: weights: 1 of 6 values, by at most" in told
    assert told.splitlines()[-1].startswith("VERDICT: different (1 of 3 tensors, 0 places")


def test_training_that_drifts_after_a_restart_is_reported_with_its_step_and_the_input():
    env = {"FAKE_DOUBT": UNSEEDED, "FAKE_SOURCE": PYTHON}
    told = drill("--at", "step:7", "--twice", code=1, fault="drift", env=env).stdout
    assert "After step 9 was equal, from step 10 on (epoch 0, w0) the runs differ: weights" in told
    assert "3 steps after it continued at step 7, restart 1 of 1" in told
    assert f"Likely cause: the input. {UNSEEDED}" in told
    assert f"Other possible cause: {PYTHON}" in told
    assert "A second undisturbed run was identical" in told
    assert "drill, once more: undisturbed again" in told


def test_a_script_that_does_not_repeat_itself_is_found_without_a_third_run():
    told = drill("--at", "step:7", "--twice", code=1, fault="unrepeatable").stdout
    assert "After step 0 was equal, from step 1 on (epoch 0, w0) the runs differ: weights" in told
    assert "That is before the first preemption." in told
    assert "The script does not repeat itself, with or without preemptions" in told
    assert "keras.utils.set_random_seed" in told
    assert "once more" not in told


def test_a_lost_history_is_a_difference_that_no_step_shows():
    told = drill("--workers", "2", "--at", "step:7", code=1, fault="history").stdout
    assert re.search(r"History +DIFFERENT\n", told)
    assert "different: w1/callbacks/History: 20 and 19 entries" in told
    assert "All recorded steps are equal" in told
    assert "add --twice to find out" in told
