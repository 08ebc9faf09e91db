"""Scripts of many kinds start the same with a standby, and can not tell that there was one."""

from __future__ import annotations

import sys

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
VARYING |= {"KERAS_DISTRIBUTION_JOB_ADDRESSES", "JAX_COMPILATION_CACHE_DIR"}


def test_a_script_sees_no_difference(installed):
    installed.install("loud/__init__", LOUD)
    installed.install("loud/inner", "value = 5")
    script = installed.script(NOSY.format(varying=sorted(VARYING)))
    environment = {"PYTHONHASHSEED": "7", "PYTHONPATH": str(installed.folder / "own")}
    _, run = compared(installed, [installed.python, script, "--epochs", "3"], environment=environment)
    assert run.standbys == ALL
    assert "loud's exit handler" in run.output[1, 0]


WARNER = """
import warnings
warnings.warn("this")
warnings.warn("that")
print("a line between them", flush=True)
warnings.warn("warner is old", DeprecationWarning, stacklevel=2)
warnings.warn("inner change", DeprecationWarning)
"""

LOGGER = """
import logging
logging.getLogger("logger").info("logs")
print(logging.root.handlers != [], logging.root.level)
if not logging.root.handlers:  # As that of TensorFlow does.
    logging.getLogger("logger").addHandler(logging.StreamHandler())
logging.getLogger("logger").warning("warns")
"""

ROOT = """
import logging
logging.root.setLevel(logging.INFO)
logging.warning("sets up the root logger, as absl does")
"""

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
    "imports in two threads, in another order than before": (
        ["train.py"],
        {
            "train.py": """
import os, sys, threading
if os.environ["KERAS_PREEMPT_LAUNCHER_INCARNATION"] == "1":
    other = threading.Event()
    class Late:
        def find_spec(self, name, path=None, target=None):
            if name == "loud":
                other.wait(60)
    sys.meta_path.insert(0, Late())
    thread = threading.Thread(target=__import__, args=("loud",)); thread.start()
    import trainer
    other.set(); thread.join()
import loud, trainer
{}
"""
        },
    ),
    "removes a module and imports it again": (
        ["train.py"],
        {"train.py": "import sys, loud\ndel sys.modules['loud']\nimport loud, trainer\n{}"},
    ),
    "filters warnings": (
        ["train.py"],
        {
            "train.py": "import warnings\nwarnings.filterwarnings('ignore', 'this')\nimport warner, trainer\n{}"
        },
    ),
    "sees warnings that others ignore": (
        ["train.py"],
        {"train.py": "import warnings\nwarnings.simplefilter('always')\nimport warner, trainer\n{}"},
    ),
    "logs to a place of its own": (
        ["train.py"],
        {
            "train.py": """
import logging
logging.basicConfig(format="mine: %(message)s", level=logging.INFO)
import logger, trainer
{}
"""
        },
    ),
    "imports what sets up the root logger": (
        ["train.py"],
        {
            "train.py": """
import logging
print(logging.root.handlers, logging.root.level)
import root, logger, warner, trainer
print(len(logging.root.handlers), logging.root.level)
logging.getLogger("mine").info("logged as root has it")
{}
"""
        },
    ),
    "closes all files": (
        ["train.py"],
        {
            "train.py": """
import os
os.closerange(3, 1000)
files = [open(os.devnull) for each in range(20)]
import loud, trainer
{}
print([file.read() for file in files])
"""
        },
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
    installed.install("warner", WARNER)
    installed.install("logger", LOGGER)
    installed.install("root", ROOT)
    for name, code in files.items():
        installed.script(code.replace("{}", "trainer.train()"), name)
    _, run = compared(installed, [installed.python, *arguments])
    assert run.standbys == ALL
