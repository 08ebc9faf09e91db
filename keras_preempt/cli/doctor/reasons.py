"""Explains how a trial ended, and what to do about it."""

from __future__ import annotations

import shlex

from keras_preempt.agreement.grace import MARGIN
from keras_preempt.cli.doctor.finding import Findings
from keras_preempt.cli.doctor.surroundings import RESET, UNBLOCK
from keras_preempt.cli.doctor.trial import Trial
from keras_preempt.process.exit_codes import EXIT_NOT_SAVED, signal_name

_PATH = "signal path"
_EXEC = "Let the shell become the command: `exec python train.py` as its last line, or no shell at all."
_WRAPPER = "A wrapper that has to stay must pass SIGTERM on and wait for its child."


def explain_trial(seen: Trial, findings: Findings) -> None:
    """Adds the findings of a trial: what was wrong, its cause first."""
    before = len(findings.all)
    as_expected = seen.in_time and seen.good_status and not seen.left
    passed, loop_passed = as_expected and seen.saved is not None, as_expected and seen.is_loop
    ended_well = bool(seen.exits) and not any(seen.exits.values()) and not seen.left
    if not seen.trains:
        _no_training(seen, findings)
        return
    if ended_well and not passed and not loop_passed and seen.watched.has("finish"):
        _over(seen, findings)
        return
    if passed or loop_passed:
        _passed(seen, findings)
    else:
        _causes(seen, findings)
    if seen.ever_ignored is not None:
        findings.problem(
            "SIGTERM",
            f"SIGTERM is ignored when Python starts ({seen.ever_ignored}): only fit hears it. A notice before fit, or "
            "after it while the script evaluates or exports, does nothing, and the process is killed.",
            f"Remove the `trap '' TERM` (or what else ignores it) around the command, or begin the script with "
            f"`import signal; {RESET}`.",
        )
    if len(findings.all) == before:
        _without_a_cause(seen, findings)


def _no_training(seen: Trial, findings: Findings) -> None:
    status = ", ".join(_status(code) for code in seen.exits.values())
    last = f" Its last lines: {seen.last_lines}" if str(seen.last_lines) else ""
    how = f"ended with {status}" if seen.exits else f"ran for {seen.began_after:.0f} s"
    if seen.watched.has("finish"):
        _over(seen, findings)
    elif any(seen.exits.values()) or seen.watched.has("error"):
        findings.problem(
            "training",
            f"The command failed before training began ({status or 'still running'}).{last}",
            "Correct what the command says, and run the doctor again.",
        )
    elif seen.watched.has("start"):
        findings.problem(
            "training",
            f"fit began, but not every worker had finished its first step after {seen.patience:g} s.",
            "Pass a longer --start-timeout if the first step takes that long.",
        )
    elif seen.is_loop:
        findings.warning(
            "callback",
            f"The command {how}, and no PreemptionCheckpointHandler of keras_preempt began to listen in it, as far as "
            "the doctor can follow a custom loop. Expected: one in each worker, in the main thread.",
            "Make the handler before the loop; pass a longer --start-timeout if that takes longer, and more epochs if "
            "the loop was over. Behind a launcher, try the script itself: -- python train.py.",
        )
    else:
        findings.problem(
            "callback",
            f"The command {how}, and no fit with a PreemptionCallback began in it: a notice would end it, and nothing "
            "would be saved.",
            "Pass the callback: model.fit(..., callbacks=[PreemptionCallback(DIR)]). If it only takes longer than that "
            "to begin, pass a longer --start-timeout.",
        )


def _over(seen: Trial, findings: Findings) -> None:
    findings.problem(
        "training",
        f"Training was over {seen.began_after:.0f} s after the start, before it could answer a signal: that proves "
        "nothing.",
        "Give the command more epochs for this trial.",
    )


def _passed(seen: Trial, findings: Findings) -> None:
    statuses = ", ".join(sorted({str(code) for code in seen.exits.values()}))
    signalled = f"SIGTERM to the process that was started ({seen.chain[0] if seen.chain else shlex.join(seen.command)})"
    took = f"{seen.seconds:.1f} s of the {seen.grace.seconds:g} s of grace"
    if seen.saved is None:
        findings.not_checked(
            _PATH,
            f"Which step a PreemptionCheckpointHandler has saved: it reports no events. {signalled} ended the loop "
            f"with {statuses}, which says that it saved, after {took}, and nothing was left behind. Start it again, "
            "and check that it continues.",
        )
        return
    findings.ok(
        _PATH,
        f"{signalled} reached training: step {seen.saved} was saved, it ended with {statuses} after {took}, and left "
        "nothing behind.",
    )
    if seen.seconds + MARGIN > seen.grace.seconds:
        findings.warning(
            _PATH,
            f"It took {took}, which leaves no safety margin.",
            "Give the job more grace, or a faster place for its checkpoints.",
        )


def _causes(seen: Trial, findings: Findings) -> None:
    """Adds the most specific cause that explains the end, and then what else is wrong."""
    first = seen.chain[0] if seen.chain else None
    last = seen.chain[-1] if seen.chain and seen.found_training else None
    between = [process for process in seen.chain if process is not last]
    if last is not None and last.blocked:
        findings.problem(
            "SIGTERM",
            f"SIGTERM is blocked in {last}, which trains: whatever started it has blocked it, and the "
            "signal never arrives.",
            f"Find what blocks it, or begin the script with `import signal; {UNBLOCK}`, before Keras is imported.",
        )
    elif seen.dropped or (first is not None and first.first and not first.caught and not seen.in_time):
        findings.problem(
            "PID 1",
            f"{first} is process 1 of a container, and has no handler for SIGTERM: the kernel drops the signal.",
            f"{_EXEC} Or start the container with an init that passes signals on (docker run --init, tini).",
        )
    elif stuck := next((p for p in between if p.ignored or p.blocked), None):
        findings.problem(
            _PATH,
            f"SIGTERM went to {stuck}, which {'ignores' if stuck.ignored else 'blocks'} it; {last} "
            "trains and never got it.",
            f"{_EXEC} {_WRAPPER}",
        )
    elif last is not None and not last.caught:
        findings.problem(
            "listening",
            f"{last} trains and has no handler for SIGTERM: its fit does not run in the main thread, the only one in "
            "which Python handles signals, or TerminationConfig(signals=()) says not to listen.",
            "Call fit from the main thread (and what else has to run from another one), with signals=('SIGTERM',).",
        )
    elif between and not seen.heard and not seen.is_loop:
        findings.problem(
            _PATH,
            f"SIGTERM went to {between[0]}, which did not hand it on to {last}, which trains.",
            f"{_EXEC} {_WRAPPER}",
        )
    elif EXIT_NOT_SAVED in seen.exits.values():
        findings.problem(
            "save",
            f"The notice was heard, and the checkpoint could not be saved (status {EXIT_NOT_SAVED}).",
            f"The log says why: {seen.last_lines}",
        )
    elif not seen.in_time and seen.heard:
        findings.problem(
            "save",
            f"The notice was heard, and the job still ran when the {seen.grace.seconds:g} s of grace were used up.",
            "Give the job more grace (terminationGracePeriodSeconds, --signal, GraceTime; --grace here), or a faster "
            "place for its checkpoints. TerminationConfig(grace_period=0) saves and exits at once.",
        )
    elif between and seen.saved is not None and seen.in_time and not seen.good_status:
        findings.problem(
            "exit status",
            f"Step {seen.saved} was saved, but the command ended with {_statuses(seen)}: what "
            "starts it again would take that for an end or a crash.",
            f"{_EXEC} Or hand the status on: `python train.py; status=$?; ...; exit $status`.",
        )
    if seen.left:
        findings.problem(
            "left behind",
            f"The command was gone and had left behind: {', '.join(seen.left)}. What starts it again would "
            "run beside it.",
            _EXEC if between else "End helper processes before the script does.",
        )


def _without_a_cause(seen: Trial, findings: Findings) -> None:
    saved = "saved nothing" if seen.saved is None else f"saved step {seen.saved}"
    when = f"ended with {_statuses(seen)} after {seen.seconds:.1f} s" if seen.exits else "did not end"
    if seen.is_loop:
        findings.warning(
            _PATH,
            f"After SIGTERM to the process that was started, the loop {when}. A status of "
            f"{', '.join(map(str, seen.codes))} within {seen.grace.seconds:g} s is expected; a "
            "PreemptionCheckpointHandler reports no events, so whether it saved is not known. Its last lines: "
            f"{seen.last_lines}",
            "Start it again, and check that it continues where it was. If a shell or a wrapper stands before it: "
            f"{_EXEC} If the script has a status of its own, pass --restart-code.",
        )
        return
    findings.problem(
        _PATH,
        f"After SIGTERM to the process that was started, the job {saved} and {when}. A status of "
        f"{', '.join(map(str, seen.codes))} within {seen.grace.seconds:g} s is expected. Its last lines: "
        f"{seen.last_lines}",
        "docs/troubleshooting.md explains the messages. If the script has a status of its own, pass --restart-code.",
    )


def _statuses(seen: Trial) -> str:
    return ", ".join(_status(code) for code in sorted(set(seen.exits.values())))


def _status(code: int) -> str:
    return f"status {code}" if code >= 0 else signal_name(-code)
