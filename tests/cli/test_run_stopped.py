"""How ``keras-preempt run`` is told to stop, what reaches the training process, and what the status then says."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import sys

import pytest

from tests.cli.launched import Launched, launched

__all__ = ["launched"]

SAVES = "listen(); until_signal(); saved(); sys.exit(75)"
PYTHON = shlex.quote(sys.executable)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_a_job_that_is_told_to_stop_is_saved(launched: Launched, number: signal.Signals) -> None:
    process = launched.run(sys.executable, launched.script(SAVES), workers=2)
    for worker in (0, 1):
        launched.trace(f"listening-{worker}", process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    assert f"stopped by {number.name}" in output
    assert launched.left() == []


@pytest.mark.parametrize("line", ["exec {python} {script}", "{python} {script}; echo over"])
def test_training_that_listens_for_the_signal_of_a_scheduler_gets_that_one(
    launched: Launched, line: str
) -> None:
    listens = "signal.signal(signal.SIGUSR1, lambda number, frame: None)\n"
    checks = "listen(); assert until_signal() == signal.SIGUSR1; saved(); sys.exit(75)"
    script = shlex.quote(launched.script(listens + checks))
    process = launched.run("sh", "-c", line.format(python=PYTHON, script=script))
    launched.trace("listening-0", process)
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    assert launched.left() == []


def test_a_job_whose_terminal_closes_is_saved(launched: Launched) -> None:
    """What a closed window or a lost connection is: the terminal's session gets SIGHUP, and no write succeeds."""
    ours, theirs = pty.openpty()
    script = launched.script(SAVES)
    process = launched.run(
        sys.executable,
        script,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        # The terminal that is opened first by a session without one becomes its own.
        before=f'exec "$@" 3<>{shlex.quote(os.ttyname(theirs))}',
    )
    os.close(theirs)
    launched.trace("listening-0", process)
    os.close(ours)
    assert process.wait(timeout=60) == 75
    assert launched.trace("saved-0").exists()


def test_under_nohup_the_end_of_the_terminal_is_not_heard(launched: Launched) -> None:
    script = launched.script(
        "assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN\n"
        "listen()\nwhile not (here / 'go').exists(): select.select([], [], [], 0.01)\nsaved(0, finished=True)"
    )
    process = launched.run(sys.executable, script, before='trap "" HUP; exec "$@"')
    launched.trace("listening-0", process)
    process.send_signal(signal.SIGHUP)
    (launched.folder / "go").touch()
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, "finished: incarnations=1" in output) == (0, True), output


@pytest.mark.parametrize(
    "line",
    [
        "{python} {script}; echo over",
        "{python} {script} || exit 2",  # As make does, whatever has failed.
        "trap '' TERM; {python} {script}; sleep 600",
        "{python} {script} && echo finished",
        "trap 'echo trapped' TERM; {python} {script}",
        "( {python} {script} ) | cat",
        "{python} {script} & wait",
        "sh -c '{python} {script}; echo inner'; echo outer",
        "setsid {python} {script} & wait",
    ],
)
def test_a_job_behind_a_shell_is_saved_before_75_is_said(launched: Launched, line: str) -> None:
    script = launched.script(SAVES)
    process = launched.run("sh", "-c", line.format(python=PYTHON, script=shlex.quote(script)))
    launched.trace("listening-0", process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert (launched.folder / "saved-0").exists(), output
    assert process.returncode == 75, output


def test_a_shell_that_dies_of_the_signal_leaves_the_training_process_time_to_save(launched: Launched) -> None:
    """As where a scheduler signals every process of the job: the shell is gone at once."""
    script = launched.script(
        "listen(); print('shell', os.getppid(), flush=True)\n"
        "until_signal(); select.select([], [], [], 1.0); saved(); sys.exit(75)"
    )
    process = launched.run("sh", "-c", f"{PYTHON} {shlex.quote(script)}; echo over")
    assert process.stdout is not None
    shell = next(int(line.split()[2]) for line in process.stdout if "shell" in line)
    process.send_signal(signal.SIGTERM)
    os.kill(shell, signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, (launched.folder / "saved-0").exists()) == (75, True), output


def test_a_shell_that_starts_the_training_again_and_again_is_ended_too(launched: Launched) -> None:
    script = launched.script(SAVES)
    line = f"until {PYTHON} {shlex.quote(script)}; do :; done"
    process = launched.run("sh", "-c", f"while true; do sh -c {shlex.quote(line)}; done")
    launched.trace("listening-0", process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    assert launched.left() == []


def test_a_job_that_a_shell_ends_with_0_after_a_preemption_is_started_again(launched: Launched) -> None:
    script = launched.script(
        "first = not (here / 'saved-0').exists()\n"
        "saved(75 if first else 0, finished=not first); sys.exit(75 if first else 0)"
    )
    process = launched.run("sh", "-c", f"{PYTHON} {shlex.quote(script)}; echo over")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "incarnations=2 preemptions=1 failures=0" in output


@pytest.mark.parametrize(
    ("body", "status"),
    [
        # It began to train, and the signal killed it: what was trained is lost.
        ("listens(member); signal.signal(signal.SIGTERM, signal.SIG_DFL); listen(); signal.pause()", 74),
        # It did not come to that, so that nothing is lost, and nothing saved.
        (
            "signal.signal(signal.SIGTERM, signal.SIG_DFL); (here / 'listening-0').write_text('1'); signal.pause()",
            143,
        ),
        # It says itself that it could not save.
        ("listen(); until_signal(); saved(74); sys.exit(74)", 74),
        # Its status says that it is saved, and nobody has said that a checkpoint is committed.
        ("listen(); until_signal(); sys.exit(75)", 74),
    ],
)
@pytest.mark.parametrize("shell", [False, True])
def test_75_is_not_said_of_a_job_that_was_not_saved(
    launched: Launched, body: str, status: int, shell: bool
) -> None:
    script = launched.script(body)
    line = f"{PYTHON} {shlex.quote(script)}; echo over"
    process = launched.run(*(["sh", "-c", line] if shell else [sys.executable, script]))
    launched.trace("listening-0", process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == status, output


def test_a_command_without_training_of_this_package_is_believed(launched: Launched) -> None:
    script = launched.script("(here / 'listening-0').write_text('1'); until_signal(); sys.exit(75)")
    process = launched.run(sys.executable, script)
    launched.trace("listening-0", process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output


def test_a_job_stopped_while_it_starts_again_is_saved_already(launched: Launched) -> None:
    script = launched.script(
        "if not (here / 'saved-0').exists():\n    listen(); saved(); sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_DFL); (here / 'again').touch(); signal.pause()"
    )
    process = launched.run(sys.executable, script)
    launched.trace("again", process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output


#: As after jax.distributed.initialize: SIGTERM arrives, and nothing happens.
UNHEARD = (
    "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); (here / 'listening-0').write_text('1')\n"
    "signal.sigwait([signal.SIGTERM]); (here / 'unheard').touch()\n"
)
SAVED_BEFORE = "if not (here / 'saved-0').exists():\n    listen(); saved(); sys.exit(75)\n"


@pytest.mark.parametrize(("before", "status"), [("", 143), (SAVED_BEFORE, 75)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
@pytest.mark.parametrize("line", ["exec {python} {script}", "trap '' TERM; {python} {script}; echo over"])
def test_a_worker_that_neither_listens_nor_ends_is_killed_as_if_by_the_signal(
    launched: Launched, before: str, status: int, number: signal.Signals, line: str
) -> None:
    body = before + UNHEARD.replace("'listening-0'", "'ready'") + "signal.pause()"
    if line.startswith("trap"):  # The process gets no signal at all.
        body = before + "(here / 'ready').write_text('1'); signal.pause()"
    script = launched.script(body)
    command = line.format(python=PYTHON, script=shlex.quote(script))
    process = launched.run("sh", "-c", command, options=["--unheard-grace", "0.3"])
    launched.trace("ready", process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    expected = 128 + number if status == 143 else status
    assert process.returncode == expected, output
    assert "does not listen for notices, and still ran 0.3 s after SIGTERM" in output


HEARS_FROM_NOW_ON = (
    UNHEARD + "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM]); listens(member)\n"
)


@pytest.mark.parametrize(("begins", "grace"), [("listen()\n", "0"), (HEARS_FROM_NOW_ON, "1")])
def test_a_worker_that_listens_is_not_killed_for_taking_its_time(
    launched: Launched, begins: str, grace: str
) -> None:
    script = launched.script(f"{begins}until_signal(); select.select([], [], [], 2.0); saved(); sys.exit(75)")
    process = launched.run(sys.executable, script, options=["--unheard-grace", grace])
    launched.trace("listening-0", process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, (launched.folder / "saved-0").exists()) == (75, True), output


def test_a_second_signal_does_not_change_the_status(launched: Launched) -> None:
    process = launched.run(sys.executable, launched.script(SAVES))
    launched.trace("listening-0", process)
    for _ in range(1000):  # Until it is gone: whatever it is doing by then.
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=0.002)
        except Exception:
            continue
    process.communicate(timeout=60)
    assert process.returncode == 75
