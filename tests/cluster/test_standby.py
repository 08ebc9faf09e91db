"""Standbys: a script cannot tell that its process has imported ahead, and whatever is wrong, it starts as ever."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from keras_preempt.cluster import standby as standbys_module
from keras_preempt.cluster.standby import why_not
from tests.cluster.standbys import Installation, Run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="standbys are of Linux")

ALL = {(1, 0)}


@pytest.fixture(autouse=True)
def no_wait_for_an_idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests keep it busy."""
    monkeypatch.setattr(standbys_module, "_BUSY_SECONDS", 0.0)


@pytest.fixture
def installed(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def compared(installed: Installation, command: list[str], **options: object) -> tuple[Run, Run]:
    """Runs a command without standbys and with them, and makes sure that it printed the same."""
    plain = installed.run(command, standby=False, **options)
    run = installed.run(command, standby=True, **options)
    assert plain.report.exit_code == run.report.exit_code == 0, (plain, run)
    assert [i.verdict.outcome for i in run.report.incarnations] == [
        i.verdict.outcome for i in plain.report.incarnations
    ]
    for start, lines in plain.output.items():
        assert run.output[start] == lines
    assert run.output.keys() == plain.output.keys()
    return plain, run


NOSY = """
import atexit, os, sys
print("begins", sys.argv, __name__, __file__, __spec__, __package__, __cached__, __doc__, type(__loader__).__name__)
print("globals", sorted(globals()))
print("path", sys.path)
print("variables", sorted((k, v) for k, v in os.environ.items() if k not in {varying}))
print("modules", sorted(set(sys.modules) - {{"_keras_preempt_standby", "_keras_preempt_standby_process", "atexit", "gc",
    "sitecustomize"}}))
print("process", os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid(), os.umask(0o22), os.getcwd())
print("flags", sys.flags, sys.flags.hash_randomization, hash("text"), sys.warnoptions)
print("hooks", sys.excepthook is sys.__excepthook__, [getattr(each, "__name__", "?") for each in sys.path_hooks])
print("stdin", repr(sys.stdin.read()), sys.stdin.isatty(), sys.stdout.line_buffering, sys.stdout.encoding)
print("files", sorted(int(each) for each in os.listdir("/proc/self/fd"))[:3])
import resource, signal, threading, gc, traceback, warnings
print("limits", [resource.getrlimit(each) for each in range(16)], os.getpriority(os.PRIO_PROCESS, 0))
print("signals", [signal.getsignal(each) for each in sorted(signal.valid_signals())], signal.pthread_sigmask(0, []))
print("threads", threading.active_count(), threading.current_thread().name, len(os.listdir("/proc/self/task")))
print("gc", gc.isenabled(), gc.get_threshold(), gc.get_freeze_count())
print("stack", traceback.format_stack())
warnings.filterwarnings("ignore", message="mine")
atexit.register(print, "the script's own exit handler")
print("unseen", "loud" in sys.modules, os.environ.get("LOUD_WAS_HERE"), len(warnings.filters))
import loud
print("seen", "loud" in sys.modules, "loud.inner" in sys.modules, os.environ.get("LOUD_WAS_HERE"), loud.backend)
print("spec", loud.__spec__.name, loud.__spec__.origin == loud.__file__, loud.__name__, type(loud.__loader__).__name__)
print("filters", [(each[0], str(each[1])) for each in warnings.filters])
from loud.inner import value
import trainer
print("value", value)
trainer.train()
"""

LOUD = """
import atexit, os, sys, warnings
print("loud is imported")
print("loud warns", file=sys.stderr, flush=True)
os.write(1, b"loud writes in C\\n")
backend = os.environ.get("LOUD_BACKEND", "none")
os.environ["LOUD_WAS_HERE"] = "yes"
warnings.filterwarnings("ignore", message="loud")
atexit.register(print, "loud's exit handler")
"""

VARYING = {"KERAS_PREEMPT_STATUS_DIR", "KERAS_PREEMPT_LAUNCHER_INCARNATION", "NOTES", "TF_CONFIG"}
VARYING |= {"KERAS_DISTRIBUTION_JOB_ADDRESSES"}


def test_a_script_sees_no_difference(installed):
    installed.install("loud/__init__", LOUD)
    installed.install("loud/inner", "value = 5")
    script = installed.script(NOSY.format(varying=sorted(VARYING)))
    environment = {"PYTHONHASHSEED": "7", "PYTHONPATH": str(installed.folder / "own")}
    _, run = compared(installed, [installed.python, script, "--epochs", "3"], environment=environment)
    assert run.standbys == ALL
    assert "loud's exit handler" in run.output[1, 0]


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


STRANGE = {
    "-m package": (
        ["-m", "mine", "x"],
        {"mine/__main__.py": "import sys, trainer\nprint(sys.argv[1:], __package__)\n{}"},
    ),
    "-c": (["-c", "import sys, trainer; print(sys.argv); trainer.train()", "x"], {}),
    "a folder": (["folder"], {"folder/__main__.py": "import sys, trainer\nprint(sys.path[0])\n{}"}),
    "options of Python": (
        ["-u", "-W", "ignore", "-X", "dev", "train.py"],
        {"train.py": "import trainer\n{}"},
    ),
    "reads stdin": (["train.py"], {"train.py": "import sys, trainer\nprint(sys.stdin.read())\n{}"}),
    "changes sys.path": (
        ["train.py"],
        {
            "train.py": "import sys\nsys.path.insert(0, 'own')\nimport helper, trainer\n{}",
            "own/helper.py": "print('own')",
        },
    ),
    "sets a variable first": (
        ["train.py"],
        {
            "train.py": "import os\nos.environ['LOUD_BACKEND'] = 'jax'\nimport loud, trainer\nprint(loud.backend)\n{}"
        },
    ),
    "sets a variable afterwards": (
        ["train.py"],
        {"train.py": "import os, loud, trainer\nos.environ['LOUD_BACKEND'] = 'jax'\nprint(loud.backend)\n{}"},
    ),
    "spawns": (
        ["train.py"],
        {
            "train.py": """
import multiprocessing, os, trainer
def work(queue): queue.put(("worker", "trainer" in __import__("sys").modules))
if __name__ == "__main__":
    for way in ("spawn", "fork"):
        context = multiprocessing.get_context(way)
        queue = context.Queue()
        process = context.Process(target=work, args=(queue,))
        process.start(); print(way, queue.get(timeout=60)); process.join()
    {}
"""
        },
    ),
    "imports in a thread": (
        ["train.py"],
        {
            "train.py": """
import threading
def go():
    global trainer
    import loud, trainer
thread = threading.Thread(target=go); thread.start(); thread.join()
{}
"""
        },
    ),
    "removes a module and imports it again": (
        ["train.py"],
        {"train.py": "import sys, loud\ndel sys.modules['loud']\nimport loud, trainer\n{}"},
    ),
    "asks where a module is": (
        ["train.py"],
        {
            "train.py": """
import importlib.util, sys
spec = importlib.util.find_spec("loud")
print(spec.origin, type(spec.loader).__name__, "loud" in sys.modules)
import loud, trainer
{}
"""
        },
    ),
    "imports what is not there": (
        ["train.py"],
        {
            "train.py": "try:\n    import nowhere\nexcept ImportError as error:\n    print(error)\nimport trainer\n{}"
        },
    ),
    "prints a traceback": (
        ["train.py"],
        {
            "train.py": """
import traceback, loud, trainer
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
{}
"""
        },
    ),
}


@pytest.mark.parametrize("case", STRANGE)
def test_strange_scripts_start_the_same(installed, case):
    arguments, files = STRANGE[case]
    installed.install("loud/__init__", LOUD)
    for name, code in files.items():
        installed.script(code.replace("{}", "trainer.train()"), name)
    _, run = compared(installed, [installed.python, *arguments])
    assert run.standbys == ALL


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
    assert len([line for line in run.said if "another PYTHONPATH" in line]) == 1


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
    _, run = compared(installed, [installed.python, script], wait=False)
    assert not run.standbys


def test_one_that_trains_in_a_child_is_not_prepared(installed):
    script = installed.script(
        """
        import os, signal, sys, trainer
        child = os.fork()
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
    installed.script("print('own code runs')", "own_plugin.py")
    script = installed.script("import plugins, trainer\ntrainer.train()")
    _, run = compared(installed, [installed.python, script])
    assert not run.standbys
    assert any("own_plugin" in line for line in run.said)


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
