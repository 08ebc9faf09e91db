"""Why a trial has ended as it has, and what cures that."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

from keras_preempt.agreement.grace import MARGIN
from keras_preempt.checkpoint.manifest import Manifest
from keras_preempt.cli.doctor.finding import Finding, ok, problem, warning
from keras_preempt.cli.doctor.processes import Process
from keras_preempt.cli.doctor.surroundings import RESET, UNBLOCK, Grace
from keras_preempt.cli.doctor.watched import Watched
from keras_preempt.process.exit_codes import EXIT_NOT_SAVED

__all__ = ["Outcome", "explain"]

_PATH = "signal path"
_EXEC = "Let the shell become the command: `exec python train.py` as its last line, or no shell at all."


@dataclass
class Outcome:
    """What was seen of a trial.

    Attributes:
        command: The command.
        grace: What there is.
        codes: Exit statuses that ask for a restart.
        patience: Seconds that training had to begin.
        began_after: Seconds until it began, or until that was given up.
        trains: Whether it began, and was not over yet.
        as_pid_1: Whether the command is to be process 1 of a container.
        dropped: Whether the kernel would have dropped the signal, since process 1 does not handle it.
        chain: The processes from the one that was started to the one that trains.
        found_training: Whether the last of them is the one that trains.
        signalled_at: When SIGTERM was sent, in seconds since 1970.
        in_time: Whether all workers ended within the grace.
        seconds: From the signal to the end of the last worker.
        heard: Whether training heard of the signal in that time.
        saved: Checkpoints that were committed in that time.
        watched: What the fits have told.
        exits: Exit codes by worker, of those that ended by themselves.
        left: Processes that were left behind.
        last_lines: The end of the output.
        ever_ignored: A Python that was seen with SIGTERM ignored.
    """

    command: tuple[str, ...]
    grace: Grace
    codes: tuple[int, ...]
    patience: float
    began_after: float
    trains: bool
    as_pid_1: bool
    dropped: bool = False
    chain: tuple[Process, ...] = ()
    found_training: bool = False
    signalled_at: float = 0.0
    in_time: bool = False
    seconds: float = 0.0
    heard: bool = False
    saved: list[Manifest] = field(default_factory=list)
    watched: Watched = field(default_factory=lambda: Watched(""))
    exits: dict[int, int] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    ever_ignored: Process | None = None

    @property
    def good_status(self) -> bool:
        """Whether every worker has ended with a status that asks for a restart."""
        return bool(self.exits) and all(code in self.codes for code in self.exits.values())


def explain(seen: Outcome) -> list[Finding]:
    """Returns the findings of a trial: what was wrong, the cause first."""
    if not seen.trains:
        return [_no_training(seen)]
    if seen.in_time and seen.good_status and seen.saved and not seen.left:
        return [*_passed(seen), *_ignored_outside_of_fit(seen)]
    if seen.exits and not any(seen.exits.values()) and not seen.left and seen.watched.has("finish"):
        return [_over(seen)]
    if seen.exits and not any(seen.exits.values()) and not seen.left and seen.watched.has("finish"):
        return [_over(seen)]
    found = [*_causes(seen), *_ignored_outside_of_fit(seen)]
    return found or [_without_a_cause(seen)]


def _no_training(seen: Outcome) -> Finding:
    status = ", ".join(_ended(code) for code in seen.exits.values())
    last = f" Its last lines: {' | '.join(seen.last_lines)}" if seen.last_lines else ""
    if seen.watched.has("finish"):
        return _over(seen)
    if any(seen.exits.values()) or seen.watched.has("error"):
        return problem(
            "training",
            f"The command failed before training began ({status or 'still running'}).{last}",
            "Correct what the command says, and run the doctor again.",
        )
    if seen.watched.has("start"):
        return problem(
            "training",
            f"fit began, and no worker's first step was over after {seen.patience:g} s.",
            "Pass a longer --start-timeout if the first step takes that long.",
        )
    how = f"ended with status {status}" if seen.exits else f"ran for {seen.began_after:.0f} s"
    return problem(
        "callback",
        f"The command {how}, and no fit with a PreemptionCallback began in it: a notice would end it, "
        "and nothing would "
        "be saved.",
        "Pass the callback: model.fit(..., callbacks=[PreemptionCallback(DIR)]). If it only takes longer than that to "
        "begin, pass a longer --start-timeout.",
    )


def _over(seen: Outcome) -> Finding:
    return problem(
        "training",
        f"Training was over {seen.began_after:.0f} s after the start, before a signal could be answered: nothing is "
        "shown.",
        "Give the command more epochs for this trial.",
    )


def _passed(seen: Outcome) -> Iterator[Finding]:
    step = max(manifest.step for manifest in seen.saved)
    statuses = ", ".join(sorted({str(code) for code in seen.exits.values()}))
    yield ok(
        _PATH,
        f"SIGTERM to the process that was started "
        f"({seen.chain[0] if seen.chain else shlex.join(seen.command)}) reached "
        f"training: step {step} was saved, it ended with {statuses} after {seen.seconds:.1f} s of the "
        f"{seen.grace.seconds:g} s of grace, and left nothing behind.",
    )
    if seen.seconds + MARGIN > seen.grace.seconds:
        yield warning(
            _PATH,
            f"It took {seen.seconds:.1f} s of the {seen.grace.seconds:g} s of grace, which leaves "
            "nothing for a bad day.",
            "Give the job more grace, or a faster place for its checkpoints.",
        )


def _causes(seen: Outcome) -> Iterator[Finding]:
    """The most particular cause that explains it; then what is wrong besides."""
    first = seen.chain[0] if seen.chain else None
    last = seen.chain[-1] if seen.chain and seen.found_training else None
    between = [process for process in seen.chain if process is not last]
    cause: Finding | None = None
    if last is not None and last.blocked:
        cause = problem(
            "SIGTERM",
            f"SIGTERM is blocked in {last}, which trains: whoever started it has blocked it, and the "
            "signal never arrives.",
            f"Find who blocks it, or begin the script with `import signal; {UNBLOCK}`, before TensorFlow is imported.",
        )
    elif seen.dropped or (first is not None and first.first and not first.caught and not seen.in_time):
        cause = problem(
            "PID 1",
            f"{first} is process 1 of a container, and has no handler for SIGTERM: the kernel drops the signal.",
            f"{_EXEC} Or start the container with an init that hands signals on (docker run --init, tini).",
        )
    elif stuck := next((p for p in between if p.ignored or p.blocked), None):
        cause = problem(
            _PATH,
            f"SIGTERM went to {stuck}, which {'ignores' if stuck.ignored else 'blocks'} it; {last} "
            "trains and never heard of it.",
            f"{_EXEC} A wrapper that has to stay must hand SIGTERM on and wait for its child.",
        )
    elif last is not None and not last.caught:
        cause = problem(
            "listening",
            f"{last} trains and has no handler for SIGTERM: its fit does not run in the main thread, "
            "where alone Python "
            "can hear signals, or TerminationConfig(signals=()) says not to listen.",
            "Call fit from the main thread (and what else has to run from another one), with signals=('SIGTERM',).",
        )
    elif between and not seen.heard:
        cause = problem(
            _PATH,
            f"SIGTERM went to {between[0]}, which did not hand it on to {last}, which trains.",
            f"{_EXEC} A wrapper that has to stay must hand SIGTERM on and wait for its child.",
        )
    elif EXIT_NOT_SAVED in seen.exits.values():
        cause = problem(
            "save",
            f"The notice was heard, and the checkpoint could not be saved (status {EXIT_NOT_SAVED}).",
            f"The log says why: {' | '.join(seen.last_lines)}",
        )
    elif not seen.in_time and seen.heard:
        cause = problem(
            "save",
            f"The notice was heard, and the job still ran when the {seen.grace.seconds:g} s of grace were used up.",
            "Give the job more grace (terminationGracePeriodSeconds, --signal, GraceTime; --grace "
            "here), or a faster place "
            "for its checkpoints. TerminationConfig(grace_period=0) saves and exits at once.",
        )
    elif between and seen.saved and seen.in_time and not seen.good_status:
        cause = problem(
            "exit status",
            f"Step {max(m.step for m in seen.saved)} was saved, but the command ended with {_statuses(seen)}: what "
            "starts it again would take that for an end or a crash.",
            f"{_EXEC} Or hand the status on: `python train.py; status=$?; ...; exit $status`.",
        )
    if cause is not None:
        yield cause
    if seen.left:
        yield problem(
            "left behind",
            f"The command was gone and had left behind: {', '.join(seen.left)}. What starts it again "
            "would run beside it.",
            _EXEC if between else "End helper processes before the script does.",
        )


def _ignored_outside_of_fit(seen: Outcome) -> Iterator[Finding]:
    if seen.ever_ignored is not None:
        yield problem(
            "SIGTERM",
            f"SIGTERM is ignored when Python starts ({seen.ever_ignored}): only fit hears it. A notice before fit, or "
            "after it while the script evaluates or exports, does nothing, and the process is killed at its work.",
            f"Take the `trap '' TERM` (or what else ignores it) away from around the command, or begin the script with "
            f"`import signal; {RESET}`.",
        )


def _without_a_cause(seen: Outcome) -> Finding:
    saved = f"saved step {max(m.step for m in seen.saved)}" if seen.saved else "saved nothing"
    when = f"ended with {_statuses(seen)} after {seen.seconds:.1f} s" if seen.exits else "did not end"
    return problem(
        _PATH,
        f"After SIGTERM to the process that was started, the job {saved} and {when}. A status of "
        f"{', '.join(map(str, seen.codes))} within {seen.grace.seconds:g} s is expected. Its last lines: "
        f"{' | '.join(seen.last_lines)}",
        "docs/troubleshooting.md explains the messages. If the script has a status of its own, pass --restart-code.",
    )


def _statuses(seen: Outcome) -> str:
    return ", ".join(_ended(code) for code in sorted(set(seen.exits.values())))


def _ended(code: int) -> str:
    if code >= 0:
        return f"status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
