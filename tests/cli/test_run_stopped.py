"""How ``keras-preempt run`` is told to stop, what reaches the training process, and what the status then says."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.launched import Launched

SAVES = "listen(); until_signal(); saved(); sys.exit(75)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_a_job_that_is_told_to_stop_is_saved(launched: Launched, number: signal.Signals) -> None:
    output = launched.stopped(launched.train(SAVES, workers=2), 75, number)
    assert f"stopped by {number.name}, saved at step 7: incarnations=1 preemptions=1 failures=0" in output
    assert launched.trace("saved-0").exists()
    assert launched.trace("saved-1").exists()
    assert launched.left() == []


def test_a_run_told_to_stop_that_finishes_all_the_same_is_finished(launched: Launched) -> None:
    body = "(here / 'listening-0').write_text('1'); until_signal()"
    launched.stopped(launched.train(body), 0)


def test_sigint_reaches_workers_as_sigint_and_ends_the_run(launched: Launched) -> None:
    process = launched.train("listen(); print('got', until_signal()); sys.exit(1)", workers=2)
    output = launched.stopped(process, 130, signal.SIGINT)
    assert f"[w0] got {int(signal.SIGINT)}" in output
    assert f"[w1] got {int(signal.SIGINT)}" in output


def test_a_second_sigint_kills_workers_that_do_not_leave(launched: Launched) -> None:
    body = "listen(); until_signal(); print('staying'); until_signal(); until_signal()"
    process = launched.train(body, workers=2)
    pids = [(launched.folder / f"listening-{worker}").read_text() for worker in (0, 1)]
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    for _ in pids:
        assert "staying" in process.stdout.readline()
    launched.stopped(process, 130, signal.SIGINT)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("line", ["exec {train}", "{train}; echo over"])
def test_training_that_listens_for_the_signal_of_a_scheduler_gets_that_one(
    launched: Launched, line: str
) -> None:
    listens = "signal.signal(signal.SIGUSR1, lambda number, frame: None)\n"
    checks = "listen(); assert until_signal() == signal.SIGUSR1; saved(); sys.exit(75)"
    launched.stopped(launched.train(listens + checks, line), 75, signal.SIGUSR1)
    assert launched.left() == []


def test_a_job_whose_terminal_closes_is_saved(launched: Launched) -> None:
    """What a closed window or a lost connection is: the terminal's session gets SIGHUP, and no write succeeds."""
    ours, theirs = pty.openpty()
    # The terminal that is opened first by a session without one becomes its own.
    before = f'exec "$@" 3<>{shlex.quote(os.ttyname(theirs))}'
    how = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
    process = launched.train(SAVES, before=before, **how)
    os.close(theirs)
    os.close(ours)
    assert process.wait(timeout=60) == 75
    assert launched.trace("saved-0").exists()


def test_under_nohup_the_end_of_the_terminal_is_not_heard(launched: Launched) -> None:
    checks = "assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN\n"
    body = checks + "listen(); until_go(); saved(0, finished=True)"
    process = launched.train(body, before='trap "" HUP; exec "$@"')
    process.send_signal(signal.SIGHUP)
    (launched.folder / "go").touch()
    assert "finished: incarnations=1" in launched.ended(process, 0)


@pytest.mark.parametrize(
    "line",
    [
        "{train}; echo over",
        "{train} || exit 2",  # As make does, whatever has failed.
        # The shells of these two go on and are killed, which is waited for.
        pytest.param("trap '' TERM; {train}; sleep 600", marks=pytest.mark.chaos),
        pytest.param("while true; do sh -c 'until {train}; do :; done'; done", marks=pytest.mark.chaos),
        "{train} && echo finished",
        "trap 'echo trapped' TERM; {train}",
        "( {train} ) | cat",
        "{train} & wait",
        "sh -c '{train}; echo inner'; echo outer",
        "setsid {train} & wait",
    ],
)
def test_a_job_behind_a_shell_is_saved_before_75_is_said(launched: Launched, line: str) -> None:
    output = launched.stopped(launched.train(SAVES, line))
    assert (launched.folder / "saved-0").exists(), output
    assert launched.left() == []


def test_a_shell_that_dies_of_the_signal_leaves_the_training_process_time_to_save(launched: Launched) -> None:
    """As where a scheduler signals every process of the job: the shell is gone at once."""
    body = (
        "(here / 'shell').write_text(str(os.getppid())); listen()\n"
        "until_signal(); select.select([], [], [], 1.0); saved(); sys.exit(75)"
    )
    process = launched.train(body, "{train}; echo over")
    process.send_signal(signal.SIGTERM)
    os.kill(int((launched.folder / "shell").read_text()), signal.SIGTERM)
    output = launched.ended(process, 75)
    assert (launched.folder / "saved-0").exists(), output


def test_a_job_that_a_shell_ends_with_0_after_a_preemption_is_started_again(launched: Launched) -> None:
    body = (
        "first = not (here / 'saved-0').exists()\n"
        "saved(75 if first else 0, finished=not first); sys.exit(75 if first else 0)"
    )
    output = launched.ended(launched.train(body, "{train}; echo over", until=""), 0)
    assert "incarnations=2 preemptions=1 failures=0" in output


DIES = "signal.signal(signal.SIGTERM, signal.SIG_DFL)"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        # It began to train, and the signal killed it: what was trained is lost.
        (f"listens(member); {DIES}; listen(); signal.pause()", 74),
        # It did not come to that, so that nothing is lost, and nothing saved.
        (f"{DIES}; (here / 'listening-0').write_text('1'); signal.pause()", 143),
        # It says itself that it could not save.
        ("listen(); until_signal(); saved(74); sys.exit(74)", 74),
        # Its status says that it is saved, and nobody has said that a checkpoint is committed.
        ("listen(); until_signal(); sys.exit(75)", 74),
    ],
)
@pytest.mark.parametrize("line", ["exec {train}", "{train}; echo over"])
def test_75_is_not_said_of_a_job_that_was_not_saved(
    launched: Launched, body: str, status: int, line: str
) -> None:
    launched.stopped(launched.train(body, line), status)


@pytest.mark.parametrize(
    ("body", "until"),
    [
        # A command without training of this package is believed.
        ("(here / 'listening-0').write_text('1'); until_signal(); sys.exit(75)", "listening-0"),
        # A job that is stopped while it starts again is saved already.
        (
            "if not (here / 'saved-0').exists():\n    listen(); saved(); sys.exit(75)\n"
            f"{DIES}; (here / 'again').touch(); signal.pause()",
            "again",
        ),
    ],
)
def test_75_is_said_of_a_job_that_says_nothing_or_starts_again(
    launched: Launched, body: str, until: str
) -> None:
    launched.stopped(launched.train(body, until=until))


#: As after jax.distributed.initialize: SIGTERM arrives, and nothing happens.
UNHEARD = (
    "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); (here / 'listening-0').write_text('1')\n"
    "signal.sigwait([signal.SIGTERM]); (here / 'unheard').touch()\n"
)
SAVED_BEFORE = "if not (here / 'saved-0').exists():\n    listen(); saved(); sys.exit(75)\n"
#: The process gets no signal at all.
SHIELDED = "trap '' TERM; {train}; echo over"


@pytest.mark.parametrize(
    ("line", "before", "number"),
    [
        ("exec {train}", "", signal.SIGTERM),
        ("exec {train}", SAVED_BEFORE, signal.SIGHUP),
        (SHIELDED, "", signal.SIGUSR1),
        (SHIELDED, SAVED_BEFORE, signal.SIGTERM),
    ],
)
def test_a_worker_that_neither_listens_nor_ends_is_killed_as_if_by_the_signal(
    launched: Launched, line: str, before: str, number: signal.Signals
) -> None:
    body = before + UNHEARD.replace("'listening-0'", "'ready'") + "signal.pause()"
    if line == SHIELDED:
        body = before + "(here / 'ready').write_text('1'); signal.pause()"
    process = launched.train(body, line, "ready", options=["--unheard-grace", "0.3"])
    output = launched.stopped(process, 75 if before else 128 + number, number)
    assert "does not listen for notices, and still ran 0.3 s after SIGTERM" in output


HEARS_FROM_NOW_ON = (
    UNHEARD + "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM]); listens(member)\n"
)


@pytest.mark.parametrize(("begins", "grace"), [("listen()\n", "0"), (HEARS_FROM_NOW_ON, "1")])
def test_a_worker_that_listens_is_not_killed_for_taking_its_time(
    launched: Launched, begins: str, grace: str
) -> None:
    body = f"{begins}until_signal(); select.select([], [], [], 2.0); saved(); sys.exit(75)"
    output = launched.stopped(launched.train(body, options=["--unheard-grace", grace]))
    assert (launched.folder / "saved-0").exists(), output


def test_a_second_signal_does_not_change_the_status(launched: Launched) -> None:
    process = launched.train(SAVES)
    for _ in range(1000):  # Until it is gone: whatever it is doing by then.
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=0.002)
        except subprocess.TimeoutExpired:
            continue
    launched.ended(process, 75)
