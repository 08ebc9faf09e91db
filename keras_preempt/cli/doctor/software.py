"""Checks versions, the backend, and what makes results repeatable on a GPU; imports neither Keras nor its backends."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.version import Version

from keras_preempt.backend.determinism import OF_JAX, OF_TENSORFLOW
from keras_preempt.backend.versions import VERIFIED, requirement, too_old, version_of
from keras_preempt.cli.doctor.finding import Findings
from keras_preempt.notices.detection import find_accelerator

_DETERMINISM = {"tensorflow": OF_TENSORFLOW, "jax": OF_JAX}


def check_versions(findings: Findings) -> None:
    """Compares the installed versions of Keras and its backend with those that were verified."""
    backend = backend_of(os.environ)
    if backend not in VERIFIED:
        findings.problem(
            "backend",
            f"Expected Keras to run on the TensorFlow or the JAX backend. Received: {backend!r}.",
            "Set KERAS_BACKEND=tensorflow or KERAS_BACKEND=jax for the job, or the 'backend' in ~/.keras/keras.json.",
        )
        return
    for name, (oldest, newest) in VERIFIED[backend].items():
        version = version_of(name)
        if version is None:
            cure = f"Install it with `pip install 'keras-preempt[{backend}]'`, in the environment of the job."
            other = next((each for each in VERIFIED if each != backend and version_of(each)), None)
            if name != backend or other is None:
                what = f"Expected {name} to be installed beside keras-preempt. Received: none."
            else:
                what = (
                    f"Expected {name} to be installed, which Keras is set to run on. Received: {other} "
                    f"{version_of(other)} alone."
                )
                cure = f"Set KERAS_BACKEND={other} for the job, to train on what is there. Otherwise: {cure}"
            findings.problem("versions", what, cure)
        elif wrong := too_old(name, version, oldest):
            findings.problem("versions", *wrong)
        elif Version(version) > Version(newest):
            findings.warning(
                "versions",
                f"{name} {version} is newer than {newest}, the newest verified. It works unless something that is "
                "relied upon has changed.",
                f"Drill the script once (keras-preempt drill), or install {requirement(name, newest, '==')}.",
            )
        else:
            findings.ok("versions", f"{name} {version}; {oldest} to {newest} are verified.")


def check_determinism(findings: Findings, command: Sequence[str], root: Path = Path("/")) -> None:
    """Looks for the settings that make a GPU give the same bits each time."""
    kind, sign = find_accelerator(os.environ, root)
    if kind != "gpu":
        findings.ok("determinism", "There is no GPU here whose order of additions could matter.")
        return
    wanted = _DETERMINISM.get(backend_of(os.environ), OF_TENSORFLOW)
    if wanted.is_set:
        findings.ok("determinism", f"There is a GPU ({sign}), and {wanted.variable} makes it repeatable.")
        return
    for word in command:
        is_script = word.endswith(".py") and os.path.isfile(word)
        if is_script and wanted.in_script in Path(word).read_text("utf-8", errors="replace"):
            findings.ok("determinism", f"There is a GPU ({sign}), and {word} says {wanted.in_script}.")
            return
    findings.warning(
        "determinism",
        f"There is a GPU ({sign}), and nothing that makes its results repeatable was found. No work is lost, "
        "but a resumed run is not bit-identical to an undisturbed one.",
        f"{wanted.cure}.",
    )


def backend_of(variables: Mapping[str, str]) -> str:
    """Returns the name of the backend that Keras would run on."""
    if name := variables.get("KERAS_BACKEND"):
        return name
    home = variables.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    try:
        return str(json.loads(Path(home, "keras.json").read_text("utf-8")).get("backend", "tensorflow"))
    except (OSError, ValueError, AttributeError):
        return "tensorflow"
