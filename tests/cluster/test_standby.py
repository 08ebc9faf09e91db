"""Standbys: a script cannot tell that its process has imported ahead, and whatever is wrong, it starts as ever."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time
from pathlib import Path

import pytest

from keras_preempt.cluster import standby as standbys_module
from keras_preempt.cluster.standby import ImportNotes, why_not
from tests.cluster.standbys import ALL, LOUD, Installation, compared

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="standbys are of Linux")


def test_several_workers_have_one_each(installed):
    script = installed.script(
        """
        import json, os, trainer
        print("worker", json.loads(os.environ["TF_CONFIG"])["task"]["index"], os.environ["KERAS_PREEMPT_WORKER"])
        print("status", os.path.basename(os.environ["KERAS_PREEMPT_STATUS_DIR"]))
        trainer.train(2)
        """
    )
    _, run = compared(installed, [installed.python, script], workers=2, restarts=2)
    assert run.standbys == {(start, worker) for start in (1, 2) for worker in (0, 1)}


def test_a_job_that_knows_the_imports_of_one_before_has_them_for_all_its_starts(installed):
    installed.install("loud/__init__", LOUD)
    script = installed.script("import loud, trainer\nprint(loud.backend)\ntrainer.train(2)")
    notes = ImportNotes()
    before = installed.run([installed.python, script], standby=0, known=notes, workers=2, restarts=2)
    assert (before.report.exit_code, before.standbys, [*notes.heads]) == (0, set(), [0, 1])
    run = installed.run([installed.python, script], standby=2, known=notes, workers=2, restarts=2, wait=False)
    assert (run.report.exit_code, run.output) == (0, before.output), run
    assert run.standbys == {(start, worker) for start in (1, 2) for worker in (0, 1)}


def test_a_job_that_is_told_to_stop_does_not_wait_for_them(installed):
    hanging = (
        "import os, time\nif not os.path.exists(os.environ['NOTES'] + '/../first'):\n    time.sleep(100)"
    )
    installed.install("loud", hanging)
    script = installed.script("import loud, trainer\ntrainer.train()")
    notes, first = ImportNotes(), installed.folder / "first"
    first.touch()
    installed.run([installed.python, script], standby=0, known=notes)
    first.unlink()
    telling = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
    telling.start()
    began = time.monotonic()
    run = installed.run([installed.python, script], standby=1, known=notes)
    telling.join()
    assert "stopped by SIGTERM" in run.report.summary
    assert time.monotonic() - began < 60  # The import takes 100 s.


def test_a_console_entry_point_has_one(installed):
    file = Path(
        installed.script(
            f"#!{installed.python}\nimport sys, trainer\nprint(sys.argv)\ntrainer.train()\n", "entry"
        )
    )
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    _, run = compared(installed, [str(file), "x"])
    assert run.standbys == ALL


FRESH = {
    "a shell": (["sh", "-c", "{python} train.py; exit $?"], "no Python"),
    "isolated": (["{python}", "-I", "train.py"], "-I"),
    "from stdin": (["{python}", "-"], "standard input"),
    "interactive": (["{python}", "-i", "train.py"], "-i"),
}


@pytest.mark.parametrize("case", FRESH)
def test_what_cannot_be_a_standby_is_said_before_anything_starts(installed, case):
    command, why = FRESH[case]
    installed.script("import trainer\ntrainer.train()")
    command = [word.format(python=installed.python) for word in command]
    assert why in why_not(command)
    if case != "from stdin":
        _, run = compared(installed, command)
        assert not run.standbys
        assert len([line for line in run.said if why in line]) == 1


SHELL = '#!/bin/sh\n{before}exec {python} "$@"\n'


def wrapper(installed: Installation, before: str = "") -> str:
    """A shell script named python, as version managers have it."""
    file = Path(installed.script(SHELL.format(before=before, python=installed.python), "bin/python"))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def test_a_shell_script_named_python_is_none(installed):
    # The helper would be taken for the worker, and the worker would wait for the launcher.
    python = wrapper(installed, f"X=$({installed.python} -c 'print(5)')\nexport X\n")
    script = installed.script("import os, trainer\nprint(os.environ['X'])\ntrainer.train()")
    _, run = compared(installed, [python, script])
    assert not run.standbys
    assert len([line for line in run.said if "no standby" in line and "is no Python" in line]) == 1


def test_a_python_with_another_path_has_none_and_that_is_said(installed, monkeypatch):
    monkeypatch.setattr(
        standbys_module, "_named_first", lambda program: None
    )  # As if the wrapper were no script.
    script = installed.script("import trainer\ntrainer.train()")
    _, run = compared(installed, [wrapper(installed, "PYTHONPATH=/nowhere "), script])
    assert not run.standbys
    assert len([line for line in run.said if "changes PYTHONPATH" in line]) == 1


def test_a_sitecustomize_of_the_user_that_fails_is_no_obstacle(installed):
    installed.script("1 / 0", "own/sitecustomize.py")
    script = installed.script("import loud, trainer\ntrainer.train()")
    installed.install("loud", "print('loud')")
    _, run = compared(installed, [installed.python, script], environment={"PYTHONPATH": "own"})
    assert run.standbys == ALL


def test_one_that_becomes_another_program_is_not_prepared(installed):
    installed.script("import trainer\ntrainer.train()", "real.py")
    script = installed.script(
        "import os, sys, loud\nprint('hands over', flush=True)\nos.execv(sys.executable, [sys.executable, 'real.py'])"
    )
    installed.install("loud", "")
    _, run = compared(installed, [installed.python, script])
    assert not run.standbys
    assert len([line for line in run.said if "hands over to another program" in line]) == 1


STARTED = (
    "import subprocess; child = subprocess.Popen([sys.executable, 'real.py']).pid"  # As nbconvert's kernel.
)


@pytest.mark.parametrize("started", ["child = os.fork()", STARTED], ids=["forked", "started"])
def test_one_that_trains_in_a_child_is_not_prepared(installed, started):
    installed.script("import trainer\ntrainer.train()", "real.py")
    script = installed.script(
        f"""
        import os, signal, sys, trainer
        {started}
        if child == 0:
            trainer.train()
            os._exit(0)
        signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    _, run = compared(installed, [installed.python, script])
    assert not run.standbys
    assert len([line for line in run.said if "has started itself" in line]) == 1


def test_a_variable_with_another_value_each_time_starts_the_script_afresh(installed):
    installed.install("loud/__init__", LOUD)
    script = installed.script(
        """
        import os, time
        os.environ["LOUD_BACKEND"] = str(time.time())
        import loud, trainer
        assert loud.backend == os.environ["LOUD_BACKEND"]
        print("right")
        trainer.train(2)
        """
    )
    run = installed.run([installed.python, script], standby=True, restarts=2)
    assert run.report.exit_code == 0
    assert all("right" in lines for lines in run.output.values())
    assert not run.standbys
    assert [line for line in run.said if "LOUD_BACKEND was" in line and "started again" in line]


def test_a_module_that_the_script_replaces_starts_it_afresh(installed):
    installed.install("inner", "")
    installed.install("outer", "try:\n    import inner\nexcept ImportError:\n    inner = None\n")
    script = installed.script(
        "import sys\nsys.modules['inner'] = None\nimport outer, trainer\nprint(outer.inner)\ntrainer.train(2)"
    )
    run = installed.run([installed.python, script], standby=True, restarts=2)
    assert run.report.exit_code == 0
    assert all("None" in lines for lines in run.output.values())
    assert [line for line in run.said if "in the place of inner" in line]


@pytest.mark.parametrize("seed", ["", "random.seed(1); "])
def test_an_import_that_draws_random_numbers_is_made_anew_if_they_are_seeded(installed, seed):
    installed.install("dice", "import random\nrandom.random()")
    script = installed.script(
        f"import random\n{seed}import dice, trainer\nprint({bool(seed)} and random.random())\ntrainer.train(2)"
    )
    _, run = compared(installed, [installed.python, script], restarts=2)
    assert bool(run.standbys) != bool(seed)
    assert bool(seed) == any("dice draws random numbers" in line for line in run.said)


FORKS = """
import os
if os.fork() == 0:
    {before}import loud
    print("child", loud.backend, flush=True)
    os._exit(0)
os.wait()
import loud, trainer
print("parent", loud.backend)
trainer.train()
"""


@pytest.mark.parametrize("before", ["", "os.environ['LOUD_BACKEND'] = 'jax'; "])
def test_a_forked_child_imports_as_it_does_without(installed, before):
    installed.install("loud/__init__", LOUD)
    script = installed.script(FORKS.format(before=before))
    _, run = compared(installed, [installed.python, script])
    assert run.standbys == (set() if before else ALL)
    assert bool(before) == any("forks imports with variables of its own" in line for line in run.said)


def test_a_variable_that_no_import_reads_may_have_another_value(installed):
    installed.install("loud/__init__", LOUD)
    script = installed.script(
        "import os, time\nos.environ['RUN_NAME'] = str(time.time())\nimport loud, trainer\ntrainer.train()"
    )
    run = installed.run([installed.python, script], standby=True)
    assert (run.report.exit_code, run.standbys) == (0, ALL)


def test_a_package_that_was_replaced_meanwhile_is_imported_anew(installed):
    file = installed.install("loud", "print('old')")
    script = installed.script(
        """
        import loud, trainer
        trainer.train()
        """
    )

    def replace() -> None:
        file.write_text("print('new, and longer')")

    run = installed.run([installed.python, script], standby=True, before=replace)
    assert (run.report.exit_code, run.standbys) == (0, set())
    assert run.output[1, 0] == ["new, and longer"]
    assert any("loud has changed" in line for line in run.said)


def test_own_code_is_never_run_ahead(installed):
    installed.install("plugins", "import own_plugin")
    imported = installed.folder / "imported"
    installed.script(f"open({str(imported)!r}, 'a').write('x')", "own/own_plugin.py")
    script = installed.script("import plugins, trainer\ntrainer.train()")
    environment = {"PYTHONPATH": str(installed.folder / "own")}
    _, run = compared(installed, [installed.python, script], environment=environment)
    assert not run.standbys
    assert any("imports 'own_plugin'" in line for line in run.said)
    assert imported.read_text() == "xxxx"  # Once in each start, of two runs.


def test_imports_that_change_the_process_are_not_made_ahead(installed):
    installed.install("loud", "import sys\nsys.setrecursionlimit(5000)")
    script = installed.script(
        "import sys\nprint(sys.getrecursionlimit())\nimport loud, trainer\ntrainer.train()"
    )
    _, run = compared(installed, [installed.python, script])
    assert not run.standbys
    assert any("recursion limit" in line for line in run.said)


@pytest.mark.parametrize("way", ["dies", "hangs"])
def test_a_standby_that_dies_or_hangs_costs_nothing(installed, way):
    installed.install(
        "loud",
        f"""
        import os, signal, threading, time
        def end():
            time.sleep(0.5)
            os.kill(os.getpid(), signal.{"SIGKILL" if way == "dies" else "SIGSTOP"})
        if os.path.exists(os.environ["NOTES"] + "/0-0") and not os.path.exists(os.environ["NOTES"] + "/once"):
            open(os.environ["NOTES"] + "/once", "w").close()
            threading.Thread(target=end, daemon=True).start()
        """,
    )
    script = installed.script("import loud, trainer\ntrainer.train()")
    run = installed.run([installed.python, script], standby=True)
    assert run.report.exit_code == 0
    assert len(run.report.incarnations) == 2


def test_it_is_given_up_when_memory_is_short(installed, monkeypatch):
    monkeypatch.setattr(standbys_module, "available", lambda: 1 << 20)
    script = installed.script("import trainer\ntrainer.train(2)")
    run = installed.run([installed.python, script], standby=True, restarts=2)
    assert (run.report.exit_code, run.standbys) == (0, set())
    assert len([line for line in run.said if "memory free" in line]) == 1


def test_a_process_is_as_old_as_its_worker(installed):
    """So the report counts no import that nobody has waited for."""
    script = installed.script(
        """
        import time, trainer
        from keras_preempt.process import this_process
        print(0 <= time.time() - this_process.started_at() < time.monotonic() - trainer.imported)
        trainer.train()
        """
    )
    run = installed.run([installed.python, script], standby=True)
    assert (run.output[0, 0][0], run.output[1, 0][0]) == ("False", "True")


def test_nothing_is_left(installed):
    script = installed.script("import trainer\ntrainer.train()")
    run = installed.run([installed.python, script], standby=True)
    assert run.standbys == ALL
    of_job = [
        each for each in os.listdir("/proc") if each.isdecimal() and installed.python in _command_line(each)
    ]
    assert of_job == []


def _command_line(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
