"""``keras-preempt doctor``, in this process or as a real one, and the scripts that it tries."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli import launched
from tests.cli.launched import called, command_line

DOCTOR = command_line("doctor", "--json")
ENV = {**launched.ENV, "TF_CPP_MIN_LOG_LEVEL": "3"}

#: Starts a command that inherits a blocked SIGTERM.
BLOCK = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); os.execvp(sys.argv[1], sys.argv[1:])"

_MODEL = """
import os, sys, threading
import keras, numpy as np, tensorflow as tf
from keras_preempt import PreemptionCallback
keras.utils.set_random_seed(1)
workers = "TF_CONFIG" in os.environ
strategy = tf.distribute.MultiWorkerMirroredStrategy() if workers else tf.distribute.get_strategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.ones((8, 2), "float32")
def fit(epochs=10**6):
    model.fit(x, x[:, :1], epochs=epochs, batch_size=4, verbose=0, callbacks=[PreemptionCallback(sys.argv[1])])
"""


@dataclass
class Report:
    """What a doctor has said.

    Attributes:
        status: Its exit status.
        findings: By the name of the check; the last of each.
        errors: What it wrote to standard error: the output of the command, too.
    """

    status: int
    findings: dict[str, dict[str, Any]]
    errors: str

    @property
    def problems(self) -> set[str]:
        return {name for name, finding in self.findings.items() if finding["level"] == "problem"}

    def cure(self, check: str) -> str:
        finding = self.findings.get(check, {"level": None})
        assert finding["level"] == "problem", f"{check} is no problem in {self.findings}\n{self.errors}"
        assert self.status == 1
        return f"{finding['what']}\n{finding['cure']}"

    def assert_passes(self) -> None:
        assert self.problems == set(), f"{self.findings}\n{self.errors}"
        assert self.status == 0, self.errors


def script(folder: Path, body: str = "fit()", before: str = "", name: str = "train.py") -> str:
    """Writes a script that trains the smallest model."""
    path = folder / name
    path.write_text(f"{before}\n{_MODEL}\n{body}\n")
    return str(path)


def start(
    *arguments: str, env: Mapping[str, str] | None = None, before: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Starts a doctor; `before` is a command that starts it in turn."""
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*before, *DOCTOR, *arguments], env={**ENV, **(env or {})}, **output)


def report_of(process: subprocess.Popen[str]) -> Report:
    output, errors = process.communicate(timeout=300)
    return read(process.returncode, output, errors)


def read(status: int, output: str, errors: str) -> Report:
    assert status in (0, 1), errors
    assert output, errors
    document = json.loads(output)
    assert document["schema"] == 1
    assert document["verdict"] == ("pass" if status == 0 else "would lose work")
    findings: dict[str, dict[str, Any]] = {}
    for finding in document["findings"]:
        assert set(finding) == {"check", "level", "what", "cure"}
        if findings.get(finding["check"], {}).get("level") != "problem":
            findings[finding["check"]] = finding
    return Report(status, findings, errors)


def doctor(*arguments: str, env: Mapping[str, str] | None = None, before: Sequence[str] = ()) -> Report:
    """Runs a doctor; one without a command to try, and that nothing starts in turn, in this process."""
    if before or "--" in arguments:
        return report_of(start(*arguments, env=env, before=before))
    done = called("doctor", "--json", *arguments, env=env)
    return read(done.returncode, done.stdout, done.stderr)
