"""``keras-preempt run``: its exit codes, what it says about wrong usage, and what it leaves to its caller."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.cli.saved_run import Run

COUNTS = "import os, sys\nsys.exit({codes}[int(os.environ['KERAS_PREEMPT_LAUNCHER_INCARNATION'])])"


@pytest.mark.parametrize(
    ("options", "codes", "code", "summary"),
    [
        (["-n", "2", "--max-failures", "1"], [75, 3, 0], 0, "incarnations=3 preemptions=1 failures=1"),
        # A restart code of one's own replaces the default.
        (["--restart-code", "42"], [42, 75], 75, "incarnations=2 preemptions=1 failures=1"),
    ],
)
def test_preemptions_and_failures_are_counted_apart(
    options: list[str], codes: list[int], code: int, summary: str, tmp_path: Path, run: Run
) -> None:
    script = tmp_path / "train.py"
    script.write_text(COUNTS.format(codes=codes))
    output, _ = run("run", *options, "--", sys.executable, script, code=code)
    last = output.splitlines()[-1]
    assert summary in last
    assert f"exit code={code}" in last


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "Expected a command after '--'"),
        (["run", "--workers", "0", "--", "python"], "Expected --workers of at least 1. Received: 0"),
        (["run", "--", "no-such-program"], "'no-such-program', which was not found"),
        (
            ["run", "--", "python", "-u", "-X", "dev", "trian.py"],
            "Received: 'trian.py', which does not exist in",
        ),
        (["run", "--restart-code", "0", "--", "python"], "Expected restart codes from 1 to 255"),
        (["run", "--wrong"], "--wrong"),
        (["drill", "--workers", "2"], "Expected a command after '--'"),
        (["drill", "--preempt", "0", "--", "python"], "--preempt"),
        (["report"], "Missing argument 'DIR'"),
        (["report", "oss://bucket/run"], "'oss://' is not known"),
        (["report", "gs:/bucket/run"], "a slash is missing"),
        (["report", "run", "--html"], "requires an argument"),
        (["report", "run", "--svg"], "No such option"),
        (["fly"], "Received: 'fly'. The commands are run, doctor,"),
        (["drll"], "Received: 'drll'. Did you mean 'drill'?"),
        (["run", "--epochs", "3", "--", "python"], "put '--' before the program"),
        (["doctor", "run", "python", "train.py"], "put '--' before the program"),
        (["doctor", "run", "python", "train.py", "--epochs", "3"], "put '--' before the program"),
    ],
)
def test_wrong_usage_is_one_clear_line(arguments: list[str], message: str, run: Run) -> None:
    output, error = run(*arguments, code=2)
    assert output == ""
    assert len(error.splitlines()) == 1
    assert message in error


def test_a_script_that_cannot_be_executed_is_answered_with_what_to_write(tmp_path: Path, run: Run) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    assert f"-- python {script}" in run("run", "--", script, code=2)[1]


def test_a_program_that_calls_the_command_line_hears_signals_afterwards(run: Run) -> None:
    ending = [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
    before = [signal.getsignal(number) for number in ending]
    run("run", "--", sys.executable, "-c", "pass")
    assert [signal.getsignal(number) for number in ending] == before


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ("run", "--workers 2"),
        ("drill", "--workers 2"),
        *((name, "runs/1") for name in ("inspect", "export", "clean")),
    ],
)
def test_help_teaches_with_examples_and_exit_codes(command: str, example: str, run: Run) -> None:
    output, _ = run(command, "--help")
    assert f"keras-preempt {command} {example}" in output
    assert "Exit codes:" in output
    assert max(map(len, output.splitlines())) <= 100
