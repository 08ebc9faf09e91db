"""``keras-preempt run`` as a real process: signals, exit codes, and what it says about wrong usage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_preempt.cli.main import main
from tests.cluster.harness import is_running

_ROOT = str(Path(__file__).parents[2])
_ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([_ROOT, os.environ.get("PYTHONPATH", "")])}

_WORKER = """
import os, select, signal, sys
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: None)
print("listening", os.getpid())
def until_signal():
    assert select.select([reader], [], [], 60)[0], "no signal came"
    return os.read(reader, 1)[0]
"""


_BY_INCARNATION = "import os, sys\nsys.exit({codes}[int(os.environ['KERAS_PREEMPT_LAUNCHER_INCARNATION'])])"


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "keras_preempt.cli.main", *arguments]


@pytest.fixture
def launch(tmp_path):
    """Starts ``keras-preempt run`` and waits until all workers listen; ends it in the end."""
    started: list[subprocess.Popen[str]] = []

    def start(body: str, workers: int = 2, *options: str) -> tuple[subprocess.Popen[str], list[int]]:
        script = tmp_path / "train.py"
        script.write_text(_WORKER + body)
        arguments = ["run", "--workers", str(workers), *options, "--", sys.executable, str(script)]
        process = subprocess.Popen(
            command_line(*arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_ENV
        )
        started.append(process)
        assert process.stdout is not None
        return process, [int(process.stdout.readline().split()[2]) for _ in range(workers)]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command_line(*arguments), capture_output=True, text=True, env=_ENV, timeout=60)


def test_sigterm_goes_to_all_workers_and_is_answered_with_the_restart_code_not_with_a_restart(launch):
    process, _ = launch("until_signal(); print('saved'); sys.exit(75)")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 75, output
    assert sorted(output.splitlines()[:2]) == ["[w0] saved", "[w1] saved"]
    assert "stopped by SIGTERM: incarnations=1 preemptions=1 failures=0" in output


def test_sigterm_waits_for_workers_that_save_for_long(launch):
    process, _ = launch("until_signal(); import time; time.sleep(1.5); print('saved'); sys.exit(75)", 1)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, "[w0] saved" in output) == (75, True)


def test_a_run_told_to_stop_that_finishes_all_the_same_is_finished(launch):
    process, _ = launch("until_signal()")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_sigint_reaches_workers_as_sigint_and_ends_the_run(launch):
    process, _ = launch("print('got', until_signal()); sys.exit(1)")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"[w1] got {int(signal.SIGINT)}" in output


def test_a_second_sigint_kills_workers_that_do_not_leave(launch):
    process, pids = launch("until_signal(); print('staying'); until_signal(); until_signal()")
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    for _ in pids:
        assert "staying" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_output_that_nobody_reads_does_not_end_training(tmp_path):
    script, trace = tmp_path / "train.py", tmp_path / "trace"
    script.write_text(
        "import pathlib\nfor line in range(20_000): print('line', line)\n"
        f"pathlib.Path({str(trace)!r}).touch()\n"
    )
    with subprocess.Popen(
        command_line("run", "--", sys.executable, str(script)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_ENV,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 0
        # Said once, where it can be.
        assert len(process.stderr.readlines()) == 1
    assert trace.exists()


def test_a_finished_run_counts_preemptions_and_failures_apart(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\nsys.exit([75, 3, 0][int(os.environ['KERAS_PREEMPT_LAUNCHER_INCARNATION'])])"
    )
    result = run("run", "-n", "2", "--max-failures", "1", "--", sys.executable, str(script))
    assert result.returncode == 0, result.stdout
    last = result.stdout.splitlines()[-1]
    assert "incarnations=3 preemptions=1 failures=1" in last
    assert "exit code=0" in last


def test_a_restart_code_of_ones_own_replaces_the_default(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\nsys.exit([42, 75][int(os.environ['KERAS_PREEMPT_LAUNCHER_INCARNATION'])])"
    )
    result = run("run", "--restart-code", "42", "--", sys.executable, str(script))
    assert result.returncode == 75, result.stdout
    assert "incarnations=2 preemptions=1 failures=1" in result.stdout


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
        (["fly"], "fly"),
    ],
)
def test_wrong_usage_is_one_clear_line(arguments, message):
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr


def test_a_script_that_cannot_be_executed_is_answered_with_what_to_write(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    assert f"-- python {script}" in run("run", "--", str(script)).stderr


@pytest.mark.parametrize("command", ["run", "drill"])
def test_help_teaches_an_example_and_the_exit_codes(command):
    text = run(command, "--help").stdout
    assert f"keras-preempt {command} --workers 2" in text
    assert "Exit codes:" in text


def test_the_command_line_starts_without_tensorflow_or_keras():
    code = (
        "import sys, keras_preempt.cli.main, keras_preempt.cli.run, keras_preempt.cli.drill.command\n"
        "print(sorted({'tensorflow', 'keras', 'google.cloud.storage'} & sys.modules.keys()))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=_ENV, timeout=60
    )
    assert result.stdout == "[]\n", result.stderr


def test_a_program_that_calls_the_command_line_hears_signals_afterwards():
    ending = [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
    before = [signal.getsignal(number) for number in ending]
    assert main(["run", "--", sys.executable, "-c", "pass"]) == 0
    assert [signal.getsignal(number) for number in ending] == before


def test_a_launcher_that_is_killed_takes_its_workers_with_it(launch):
    process, pids = launch("until_signal()")
    process.kill()
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)  # Orphans: there is nothing to wait on.
