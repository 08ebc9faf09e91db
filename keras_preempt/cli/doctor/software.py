"""Versions, the backend, and what makes results repeatable on a GPU. Imports neither Keras nor TensorFlow."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from packaging.version import Version

from keras_preempt.backend.versions import (
    NEWEST_KERAS,
    NEWEST_TENSORFLOW,
    OLDEST_KERAS,
    OLDEST_TENSORFLOW,
)
from keras_preempt.cli.doctor.finding import Tell, ok, problem, warning
from keras_preempt.notices import machine_clues

__all__ = ["check_determinism", "check_versions"]

_RANGES = (
    ("keras", ("keras",), OLDEST_KERAS, NEWEST_KERAS),
    (
        "tensorflow",
        ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly"),
        OLDEST_TENSORFLOW,
        NEWEST_TENSORFLOW,
    ),
)


def check_versions(tell: Tell) -> None:
    """Compares what is installed beside this command with what was verified."""
    for name, packages, oldest, newest in _RANGES:
        version = next(filter(None, map(_version, packages)), None)
        if version is None:
            tell(
                problem(
                    "versions",
                    f"Expected {name} to be installed beside keras-preempt. Received: none.",
                    "Install it with `pip install 'keras-preempt[tensorflow]'`, in the environment of the job.",
                )
            )
        elif Version(version) < Version(oldest):
            tell(
                problem(
                    "versions",
                    f"Expected {name} {oldest} or later. Received: {version}.",
                    f"Install it with `pip install '{name}>={oldest}'`.",
                )
            )
        elif Version(version) > Version(newest):
            tell(
                warning(
                    "versions",
                    f"{name} {version} is newer than {newest}, the newest verified. It works as long as what is relied "
                    "upon has not changed.",
                    f"Drill the script once (keras-preempt drill), or install {name}=={newest}.",
                )
            )
        else:
            tell(ok("versions", f"{name} {version}; {oldest} to {newest} are verified."))
    backend = _backend(os.environ)
    if backend != "tensorflow":
        tell(
            problem(
                "backend",
                f"Expected Keras to run on the TensorFlow backend. Received: {backend!r}.",
                "Set KERAS_BACKEND=tensorflow for the job, or the 'backend' in ~/.keras/keras.json.",
            )
        )


def check_determinism(tell: Tell, command: Sequence[str], root: Path = Path("/")) -> None:
    """Looks for what makes a GPU give the same bits twice."""
    kind, sign = machine_clues.accelerator(os.environ, root)
    if kind != "gpu":
        tell(ok("determinism", "No GPU is seen here, so its order of additions is no matter."))
        return
    if os.environ.get("TF_DETERMINISTIC_OPS", "").lower() in ("1", "true"):
        tell(ok("determinism", f"There is a GPU ({sign}), and TF_DETERMINISTIC_OPS is set."))
        return
    for word in command:
        if word.endswith(".py") and os.path.isfile(word):
            text = Path(word).read_text("utf-8", errors="replace")
            if "enable_op_determinism" in text:
                tell(ok("determinism", f"There is a GPU ({sign}), and {word} calls enable_op_determinism."))
                return
    tell(
        warning(
            "determinism",
            f"There is a GPU ({sign}), and nothing is seen that makes its results repeatable. No work is lost by "
            "that, but a resumed run is not bit-identical to an undisturbed one.",
            "Call tf.config.experimental.enable_op_determinism() in the script, or set TF_DETERMINISTIC_OPS=1.",
        )
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _backend(variables: Mapping[str, str]) -> str:
    if name := variables.get("KERAS_BACKEND"):
        return name
    home = variables.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    try:
        return str(json.loads(Path(home, "keras.json").read_text("utf-8")).get("backend", "tensorflow"))
    except (OSError, ValueError, AttributeError):
        return "tensorflow"
