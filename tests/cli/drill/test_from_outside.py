"""``keras-preempt drill`` signals the process that the launcher started: what stands between must pass it on."""

from __future__ import annotations

import shlex

from tests.cli.drill.test_command import TRAIN, drill

LINE = shlex.join(TRAIN)


def test_a_shell_that_swallows_the_signal_fails_the_drill_with_the_cure():
    result = drill("--at", "step:4", shell=f"{LINE}; true", code=3)
    assert "w0 gets SIGTERM now, from outside" in result.stdout
    assert "SIGTERM does not reach the training" in result.stderr
    assert "exec python train.py" in result.stderr
    assert "VERDICT" not in result.stdout


def test_a_shell_that_hands_the_signal_on_is_a_cure():
    """The other cure, `exec`, leaves no shell: as in all other drills."""
    shell = f"{LINE} & child=$!; trap 'kill -TERM $child' TERM; wait $child; wait $child"
    last = drill("--at", "step:4", shell=shell).stdout.splitlines()[-1]
    assert "w0 at step 4; SIGTERM from outside; 0 steps lost" in last


def test_a_kill_takes_the_shell_and_what_it_has_started():
    options = ("--kill", "--save-every", "3", "--at", "step:4")
    last = drill(*options, shell=f"{LINE}; true").stdout.splitlines()[-1]
    assert "w0 killed at step 4; SIGKILL from outside; 1 step run again" in last


def test_the_verdict_says_which_signals_a_worker_sent_itself():
    told = drill("--at", "leaving:12", "--at", "step:4").stdout
    assert told.count("w0 gets SIGTERM now, from outside") == 2
    assert told.count("w0 gets SIGTERM now, by its own hand") == 1
    outside = "SIGTERM from outside (w0 at step 4)"
    assert f"{outside}; SIGTERM from outside, then SIGTERM by its own hand (w0 at " in told.splitlines()[-1]
