"""Checks the platform: its notices, its grace period, and how SIGTERM arrives there."""

from __future__ import annotations

import os
import signal

from keras_preempt.cli.doctor.finding import Findings
from keras_preempt.cli.doctor.software import backend_of
from keras_preempt.notices.cloud import UNKNOWN_GRACE, Grace
from keras_preempt.notices.detection import Detection
from keras_preempt.notices.platform import GENERIC_NAME, MACHINES, SCHEDULERS, Platform
from keras_preempt.notices.termination import Termination, TerminationConfig
from keras_preempt.process import environment

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
    """Whether this process was started with SIGTERM ignored, which its children inherit."""
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
