"""Checks versions, the backend, and what makes results repeatable on a GPU; imports neither Keras nor TensorFlow."""

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
from keras_preempt.cli.doctor.finding import Findings
from keras_preempt.notices.detection import find_accelerator

_RANGES = (
    ("keras", ("keras",), OLDEST_KERAS, NEWEST_KERAS),
    (
        "tensorflow",
        ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly"),
        OLDEST_TENSORFLOW,
        NEWEST_TENSORFLOW,
    ),
)


def check_versions(findings: Findings) -> None:
    """Compares the installed versions with those that were verified."""
    for name, packages, oldest, newest in _RANGES:
        version = next(filter(None, map(_version, packages)), None)
        if version is None:
            findings.problem(
                "versions",
                f"Expected {name} to be installed beside keras-preempt. Received: none.",
                "Install it with `pip install 'keras-preempt[tensorflow]'`, in the environment of the job.",
            )
        elif Version(version) < Version(oldest):
            findings.problem(
                "versions",
                f"Expected {name} {oldest} or later. Received: {version}.",
                f"Install it with `pip install '{name}>={oldest}'`.",
            )
        elif Version(version) > Version(newest):
            findings.warning(
                "versions",
                f"{name} {version} is newer than {newest}, the newest verified. It works unless something that is "
                "relied upon has changed.",
                f"Drill the script once (keras-preempt drill), or install {name}=={newest}.",
            )
        else:
            findings.ok("versions", f"{name} {version}; {oldest} to {newest} are verified.")
    backend = _backend(os.environ)
    if backend != "tensorflow":
        findings.problem(
            "backend",
            f"Expected Keras to run on the TensorFlow backend. Received: {backend!r}.",
            "Set KERAS_BACKEND=tensorflow for the job, or the 'backend' in ~/.keras/keras.json.",
        )


def check_determinism(findings: Findings, command: Sequence[str], root: Path = Path("/")) -> None:
    """Looks for the settings that make a GPU give the same bits twice."""
    kind, sign = find_accelerator(os.environ, root)
    if kind != "gpu":
        findings.ok("determinism", "There is no GPU here whose order of additions could matter.")
        return
    if os.environ.get("TF_DETERMINISTIC_OPS", "").lower() in ("1", "true"):
        findings.ok("determinism", f"There is a GPU ({sign}), and TF_DETERMINISTIC_OPS is set.")
        return
    for word in command:
        if word.endswith(".py") and os.path.isfile(word):
            text = Path(word).read_text("utf-8", errors="replace")
            if "enable_op_determinism" in text:
                findings.ok(
                    "determinism", f"There is a GPU ({sign}), and {word} calls enable_op_determinism."
                )
                return
    findings.warning(
        "determinism",
        f"There is a GPU ({sign}), and nothing that makes its results repeatable was found. No work is lost, "
        "but a resumed run is not bit-identical to an undisturbed one.",
        "Call tf.config.experimental.enable_op_determinism() in the script, or set TF_DETERMINISTIC_OPS=1.",
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
