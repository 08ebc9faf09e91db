"""Checks the platform, how SIGTERM arrives there, versions, and what makes results repeatable on a GPU.

Nothing here imports Keras or its backends.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.version import Version

from keras_preempt.backend.determinism import OF_JAX, OF_TENSORFLOW, OF_TORCH
from keras_preempt.backend.versions import VERIFIED, requirement, too_old, version_of
from keras_preempt.cli.doctor.finding import Findings
from keras_preempt.notices.cloud import UNKNOWN_GRACE, Grace
from keras_preempt.notices.detection import Detection, find_accelerator
from keras_preempt.notices.platform import GENERIC_NAME, MACHINES, SCHEDULERS, Platform
from keras_preempt.notices.termination import Termination, TerminationConfig
from keras_preempt.process import environment

_DETERMINISM = {"tensorflow": OF_TENSORFLOW, "jax": OF_JAX, "torch": OF_TORCH}

UNBLOCK = "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])"
"""Makes a process that was started with SIGTERM blocked hear it again."""

RESET = "signal.signal(signal.SIGTERM, signal.SIG_DFL)"
"""Makes a process that was started with SIGTERM ignored hear it again."""


def check_platform(findings: Findings, given: float | None, workers: int) -> tuple[Platform, Grace] | None:
    """Adds the platform, its notices and its grace period, in seconds; returns None if a variable is wrong."""
    try:
        platform = Detection().result()
        if workers == 1 or backend_of(os.environ) != "tensorflow":
            platform = platform.without_coordination_key()
        termination = Termination(TerminationConfig(), platform)
        rows = {**SCHEDULERS, **MACHINES}
        if given is not None:
            grace = Grace(given, "--grace")
        elif termination.grace_period is not None:
            grace = Grace(termination.grace_period, environment.GRACE_PERIOD)
        else:
            known = [rows[name].grace for name in platform.name.split("+") if name in rows]
            grace = min(known or [UNKNOWN_GRACE])
    except ValueError as error:
        findings.problem(
            "platform",
            str(error),
            "Correct that variable or unset it; training would stop with this error.",
        )
        return None
    findings.ok("platform", termination.describe())
    if platform.name == GENERIC_NAME:
        findings.ok(
            "notices",
            "No cloud and no scheduler was recognised, so SIGTERM is the only notice. If this is a "
            f"machine that its cloud takes back, set {environment.PLATFORM}: docs/termination.md has the names.",
        )
    if grace.source == "--grace":
        findings.ok("grace", f"{grace.seconds:g} s from a notice to the end, as --grace says.")
    else:
        findings.ok(
            "grace",
            f"{grace.seconds:g} s from a notice to the end are counted on: {grace.source}. If yours is another, "
            "pass --grace.",
        )
    return platform, grace


def is_ignored() -> bool:
    """Whether this process, and so its children, were started with SIGTERM ignored."""
    return signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def check_sigterm(findings: Findings) -> None:
    """Checks whether this process was started with SIGTERM blocked or ignored, which the job inherits."""
    if signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []):
        findings.problem(
            "SIGTERM",
            "SIGTERM is blocked where this command was started, and so it is in every process started here: no "
            "notice by signal would ever arrive.",
            f"Find who blocks it (the launcher or wrapper), or begin the script with `import signal; {UNBLOCK}`.",
        )
    elif is_ignored():
        findings.problem(
            "SIGTERM",
            "SIGTERM is ignored where this command was started, and so it is in every process started here until "
            "fit listens: before and after fit a notice does nothing, and the process is killed.",
            "Remove the `trap '' TERM` (or nohup-like wrapper) around it, or start the script through "
            "`env --default-signal=TERM python train.py`.",
        )
    else:
        findings.ok("SIGTERM", "SIGTERM is neither blocked nor ignored where this command was started.")
    if os.getpid() == 1:
        findings.warning(
            "PID 1",
            "This is process 1 of a container. The kernel drops a SIGTERM to process 1 that it does not handle: "
            "one that comes before a name of keras_preempt is imported does nothing.",
            "Begin the script with `from keras_preempt import PreemptionCallback`; or start the container with an init "
            "(docker run --init, or tini); a shell there must end with `exec`.",
        )


def check_versions(findings: Findings) -> None:
    """Compares the installed versions of Keras and its backend with those that were verified."""
    backend = backend_of(os.environ)
    if backend not in VERIFIED:
        findings.problem(
            "backend",
            f"Expected Keras to run on the TensorFlow, the JAX or the torch backend. Received: {backend!r}.",
            "Set KERAS_BACKEND to tensorflow, jax or torch for the job, or the 'backend' in ~/.keras/keras.json.",
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
