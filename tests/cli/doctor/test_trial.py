"""The doctor starts the job's own command and ends it as a machine does: broken set-ups are found, "
"and their cures work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.testing import FakeGcs
from tests.cli.doctor.doctored import BLOCK, DOCTOR, ENV, Report, doctor, script
from tests.cli.doctor.test_storage import as_cluster
from tests.cli.launched import command_line

PYTHON = sys.executable
LONG = ("--grace", "120", "--start-timeout", "280")
SHORT = ("--grace", "6", "--start-timeout", "280")
"""For what is not heard anyway: nothing is saved in time, however long that is."""

#: As TensorFlow 2.16 and 2.21 write it when they are imported on a machine without a GPU.
_LOG = [
    "2026-11-25 06:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.",
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795586684.398414   25670 cudart_stub.cc:31] Could not find cuda drivers on your machine.",
    "E0000 00:00:1795586687.864331   25670 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error",
    "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the flags.",
]
_WRITES_LOG = f"import sys\nfor line in 20 * {_LOG}: print(line, file=sys.stderr)\n"
_SWALLOW = "import signal, subprocess, sys; signal.signal(15, signal.SIG_IGN); sys.exit(subprocess.call(sys.argv[1:]))"


def tried(run: object, *command: str, given: Sequence[str] = LONG, **how: Any) -> Report:
    """What a doctor says that tries a command."""
    return doctor(str(run), *given, "--", *command, **how)


def shell(train: str, *, exec: bool) -> list[str]:
    line = f"exec {PYTHON} {train} run" if exec else f"{PYTHON} {train} run; true"
    return ["sh", "-c", line]


def test_a_good_script_passes_and_leaves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    report = tried(run, *shell(script(tmp_path), exec=True))
    report.assert_passes()
    assert "ended with 75" in report.findings["signal path"]["what"]
    assert {report.findings[check]["level"] for check in ("signal path", "room", "save")} == {"ok"}
    assert not run.exists()


def test_a_shell_that_does_not_become_the_command_is_found(tmp_path: Path) -> None:
    """The test above shows that the cure works."""
    report = tried(tmp_path / "run", *shell(script(tmp_path), exec=False))
    assert "did not hand it on" in report.cure("signal path")
    assert "exec python" in report.cure("signal path")
    assert "left behind: python" in report.cure("left behind")


@pytest.mark.parametrize(
    ("body", "check", "says"),
    [
        # What a script does that trains without the callback is not seen.
        ("print('trained')", "callback", "callbacks=[PreemptionCallback(DIR)]"),
        (
            f"{_WRITES_LOG}raise SystemExit('no such data set')",
            "training",
            "Its last lines: no such data set\n",
        ),
        # Not the start of TensorFlow's log, nor the frames above.
        (
            f"{_WRITES_LOG}def outer(): inner()\ndef inner(): PreemptionCallback('run', sav_every=3)\nouter()",
            "training",
            "Its last lines: File TRAIN, line 4, in inner | def inner(): PreemptionCallback('run', sav_every=3) | "
            "NameError: name 'PreemptionCallback' is not defined\n",
        ),
    ],
)
def test_a_script_that_ends_by_itself_is_not_blamed_on_signals(
    body: str, check: str, says: str, tmp_path: Path
) -> None:
    train = tmp_path / "train.py"
    train.write_text(body)
    said = tried(tmp_path / "run", PYTHON, str(train)).cure(check)
    assert says in said.replace(f'"{train}"', "TRAIN")


_LOOP = """
import sys, time
import tensorflow as tf
from keras_preempt import PreemptionCheckpointHandler
step = tf.Variable(0, dtype=tf.int64)
with PreemptionCheckpointHandler(None, tf.train.Checkpoint(step=step), sys.argv[1]) as handler:
    while True:
        handler.run(time.sleep, 0.1)
        step.assign_add(1)
"""


@pytest.mark.chaos  # It waits ten seconds by design; test_reasons.py and test_loops.py have its parts.
def test_a_custom_loop_is_not_blamed_for_reporting_no_events(tmp_path: Path) -> None:
    loop, saved = tmp_path / "loop.py", tmp_path / "saved"
    loop.write_text(_LOOP)
    report = tried(tmp_path / "run", PYTHON, str(loop), str(saved))
    report.assert_passes()
    finding = report.findings["signal path"]
    assert finding["level"] == "not checked"
    assert "ended the loop with 75" in finding["what"]
    assert "reports no events" in finding["what"]
    assert list(saved.glob("*.index")), "in the loop's own directory"
    assert not (tmp_path / "run").exists()


@pytest.mark.chaos
def test_training_that_is_over_at_once_shows_nothing(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    assert "more epochs" in tried(run, PYTHON, script(tmp_path, "fit(epochs=1)"), run).cure("training")


def test_nothing_outlives_a_doctor_that_is_killed(tmp_path: Path) -> None:
    """The command is a shell whose child would go on; nothing of TensorFlow is needed for that."""
    alive = tmp_path / "alive"
    os.mkfifo(alive)
    line = f"sleep 600 & echo begun > {alive}; exec 3> {alive}; wait; true"
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*DOCTOR, "--", "sh", "-c", line], env=ENV, **silent)
    with open(alive, "rb") as pipe:
        assert pipe.readline() == b"begun\n"
        process.kill()
        process.wait()
        assert pipe.read() == b""  # The end: whoever had it open is gone.


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", ["wrapper", "blocked", "ignored", "thread"])
def test_a_script_that_does_not_hear_sigterm_is_found_and_the_cure_works(case: str, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    train = script(tmp_path)
    good = [PYTHON, train, run]
    in_thread = script(tmp_path, "t = threading.Thread(target=fit); t.start(); t.join()", name="thread.py")
    unblocks = "import signal; signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])"
    resets = "import signal; signal.signal(signal.SIGTERM, signal.SIG_DFL)"
    ignoring = ["sh", "-c", 'trap "" TERM; exec "$@"', "sh", PYTHON]
    broken, check, says, cured = {
        "wrapper": ([PYTHON, "-c", _SWALLOW, *good], "signal path", "ignores it", good),
        "blocked": (
            [PYTHON, "-c", BLOCK, *good],
            "SIGTERM",
            unblocks,
            [PYTHON, "-c", BLOCK, PYTHON, script(tmp_path, before=unblocks, name="unblocks.py"), run],
        ),
        "ignored": (
            [*ignoring, train, run],
            "SIGTERM",
            resets,
            [*ignoring, script(tmp_path, before=resets, name="resets.py"), run],
        ),
        "thread": ([PYTHON, in_thread, run], "listening", "from the main thread", good),
    }[case]
    assert says in tried(run, *broken, given=SHORT).cure(check)
    tried(run, *cured).assert_passes()


@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_a_shell_that_is_process_1_is_found_and_exec_cures_it(tmp_path: Path) -> None:
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs the right to make a PID namespace")
    run, train = str(tmp_path / "run"), script(tmp_path)
    report = tried(run, *shell(train, exec=False), given=SHORT, before=inside)
    assert "exec python" in report.cure("PID 1")
    tried(run, *shell(train, exec=True), before=inside).assert_passes()
    # The same, told from outside of the namespace: the wrapper makes it.
    report = tried(run, *inside, *shell(train, exec=False), given=SHORT)
    assert report.problems & {"signal path", "PID 1"}


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", ["launcher", "two workers", "two of a cluster", "bucket"])
def test_good_set_ups_pass(case: str, tmp_path: Path) -> None:
    run, train = str(tmp_path / "run"), script(tmp_path)
    if case == "launcher":
        tried(run, *command_line("run", "--workers", "2", "--"), PYTHON, train, run).assert_passes()
    elif case == "two workers":
        report = tried(run, PYTHON, train, run, given=[*LONG, "--workers", "2", "--wait", "120"])
        report.assert_passes()
        assert report.findings["shared"]["level"] == "ok"
    elif case == "two of a cluster":
        for report in as_cluster([run] * 2, *LONG, "--wait", "120", "--", PYTHON, train, run):
            report.assert_passes()
            assert report.findings["signal path"]["level"] == "ok"
    else:
        with FakeGcs() as gcs:
            run = "gs://bucket/run"
            tried(run, PYTHON, train, run, env=gcs.environment()).assert_passes()
            assert gcs.objects("bucket") == {}
