"""``keras-preempt drill`` signals the process that the launcher started: what stands between must pass it on."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.drill.test_command import ENVIRONMENT, drill

TRAIN = shlex.join([sys.executable, str(Path(__file__).with_name("fake_training.py"))])


def drill_shell(shell: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "keras_preempt.cli.main", "drill", *options, "--", "sh", "-c", shell]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=300)


def test_a_shell_that_swallows_the_signal_fails_the_drill_with_the_cure():
    result = drill_shell(f"{TRAIN}; true", "--at", "step:4")
    assert result.returncode == 3, result.stdout + result.stderr
    assert "w0 gets SIGTERM now, from outside" in result.stdout
    assert "SIGTERM does not reach the training" in result.stderr
    assert "exec python train.py" in result.stderr
    assert "VERDICT" not in result.stdout


@pytest.mark.parametrize(
    "shell", [f"exec {TRAIN}", f"{TRAIN} & child=$!; trap 'kill -TERM $child' TERM; wait $child; wait $child"]
)
def test_each_cure_that_the_message_names_works(shell):
    result = drill_shell(shell, "--at", "step:4")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "w0 at step 4; SIGTERM from outside; 0 steps lost" in result.stdout.splitlines()[-1]


def test_a_kill_takes_the_shell_and_what_it_has_started():
    result = drill_shell(f"{TRAIN}; true", "--kill", "--save-every", "3", "--at", "step:4")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "w0 killed at step 4; SIGKILL from outside; 1 step run again" in result.stdout.splitlines()[-1]


def test_the_verdict_says_which_signals_a_worker_sent_itself():
    result = drill("--at", "leaving:12", "--at", "step:4")
    assert result.returncode == 0, result.stdout + result.stderr
    told = result.stdout
    assert told.count("w0 gets SIGTERM now, from outside") == 2
    assert told.count("w0 gets SIGTERM now, by its own hand") == 1
    last = told.splitlines()[-1]
    assert (
        "SIGTERM from outside (w0 at step 4); SIGTERM from outside, then SIGTERM by its own hand (w0 at "
        in last
    )
