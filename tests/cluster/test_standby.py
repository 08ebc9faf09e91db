"""Standbys: a script cannot tell that its process has imported ahead."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from tests.cluster.standbys import ALL, LOUD, compared

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="standbys are of Linux")

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
