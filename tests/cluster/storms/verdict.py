"""What must hold of a job after a storm: its steps, its statuses, and what it leaves behind."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

from keras_preempt.checkpoint.storage.store import TEMPORARY_PREFIX
from keras_preempt.process.exit_codes import EXIT_INTERRUPTED
from tests.cluster.outcome import differences
from tests.cluster.storms.plan import HUP, INT, KILL, TERM
from tests.cluster.storms.weather import Start, Weather, killed

PREEMPTED, NOT_SAVED, LOST = 75, 74, 69

_Key = tuple[Any, ...]

NOT_EXACT = re.compile(r"NOT exact: worker \d+ was killed before it had written its own part")


def wrong(after: Weather, undisturbed: Weather) -> list[str]:
    """One line for everything that should not be."""
    workers = after.storm.workers
    found: list[str] = []
    expected = [_recorded(undisturbed.starts[0].records, worker) for worker in range(workers)]
    steps = [set(_ran(undisturbed.starts[0].outputs[worker])) for worker in range(workers)]
    inexact = False
    ran: list[set[str]] = [set() for _ in range(workers)]
    for start in after.starts:
        inexact = inexact or any(NOT_EXACT.search(output) for output in start.outputs)
        where = f"start {start.number}"
        found += [f"{where}: {line}" for line in _statuses(start, after.storm.workers)]
        found += [f"{where}: {line} is left" for line in start.left]
        if not killed(start):
            found += [f"{where}: {name} is left in the temporary directory" for name in start.temporary]
        for worker in range(workers):
            ran[worker] |= set(_ran(start.outputs[worker]))
            if inexact:  # It has said so. That part of its state is another one from here on.
                continue
            for key, line in _recorded(start.records, worker).items():
                if line != expected[worker].get(key):
                    found.append(f"{where}: w{worker} {key}: {expected[worker].get(key)} became {line}")
    if not inexact:
        for worker in range(workers):
            found += [f"w{worker} differs: {line}" for line in sorted(ran[worker] ^ steps[worker])]
        found += differences(undisturbed.output, after.output, workers)
    found += _left(after.directory)
    found += [f"{path.name} is left in memory" for path in after.memory.iterdir()]
    last = after.starts[-1]
    found += [f"at the end {name} is left in the temporary directory" for name in last.temporary]
    return found


def _statuses(start: Start, workers: int) -> list[str]:
    """Statuses that the documentation does not have, or not for this."""
    if start.status is not None:
        return of_the_launcher(start) + of_the_workers(start)
    found = []
    preempted = [worker for worker, code in start.codes.items() if code == PREEMPTED]
    if preempted and not start.checkpoints:
        found.append(f"w{preempted[0]} says {PREEMPTED}, and nothing is committed")
    lost = killed(start) or start.hit(INT) or LOST in start.codes.values()
    for worker, code in sorted(start.codes.items()):
        if worker in start.cleaned:
            continue  # The harness has ended it, as somebody has to when another one has failed.
        output = start.outputs[worker]
        # Before the callback listens, and after the fit, a signal does what it does to any program.
        listens = "Watching over" in output or "AT epoch" in output
        trains = listens and "AT epoch_end 2" not in output and not start.hit(INT)
        allowed = _allowed(start, lost, trains, TERM)
        if lost and not listens:  # TensorFlow's own error about a worker that never came.
            allowed |= {1, -signal.SIGABRT}
        if code not in allowed:
            found.append(f"w{worker} ended with {code}, expected one of {sorted(allowed)}:\n{_tail(output)}")
    return found


def _allowed(start: Start, lost: bool, trains: bool, *notices: int) -> set[int]:
    """Statuses of a worker; SIGTERM, which those signals are handed on as, is heard while the fit runs."""
    allowed = {0, PREEMPTED}
    if lost:
        allowed |= {LOST, NOT_SAVED}
    if start.hit(INT):
        # Before the fit it is an error, of which the other workers are told; twice, an exit at once.
        allowed |= {1, EXIT_INTERRUPTED}
    if start.hit(*notices) and not trains:
        allowed.add(-TERM)
    return allowed | {-number for number in (KILL, HUP, INT) if start.hit(number)}


def of_the_launcher(start: Start) -> list[str]:
    """Statuses of the launcher that the documentation does not have, or not for this."""
    status = start.status
    allowed = {0}
    struck = [blow for blow, came in start.struck if came and blow.target < 0]
    told = {number for blow in struck for number, _ in blow.signals}
    allowed |= {-KILL} & {-number for number in told}
    if told & {TERM, HUP}:
        allowed |= {PREEMPTED, NOT_SAVED, LOST, 128 + TERM, 128 + HUP}
        if start.hit(KILL):
            allowed.add(128 + KILL)
    allowed |= {-number for number in start.unheard}
    if INT in told:
        allowed.add(PREEMPTED)
    if start.hit(INT):  # Whoever gets it: all workers save and leave, and nobody starts them again.
        allowed.add(EXIT_INTERRUPTED)
    found = []
    if status not in allowed:
        found.append(
            f"the launcher ended with {status}, expected one of {sorted(allowed)}:\n{_tail(start.said)}"
        )
    if status == PREEMPTED and not start.checkpoints:
        found.append(f"the launcher says {PREEMPTED}, and nothing is committed")
    if "[keras-preempt] hang: " in start.said:
        found.append(f"the launcher has taken a worker for one that hangs:\n{_tail(start.said)}")
    return found


def of_the_workers(start: Start) -> list[str]:
    """Statuses of workers under the launcher that the documentation does not have, or not for this."""
    found = []
    ended = {int(index) for index in re.findall(r"w(\d+) was ended by the launcher", start.said)}
    lost = start.hit(KILL, INT) or bool(ended)
    hung_up = {gone.incarnation for gone in start.gone if gone.code == -HUP}  # As if it had been killed.
    for gone in start.gone:
        trains = "ready" in gone.told and not gone.told & {"finish", "exit", "end"} and not start.hit(INT)
        is_loss = lost or gone.incarnation in hung_up
        allowed = _allowed(start, is_loss, trains, TERM, HUP)  # The launcher hands SIGHUP on as SIGTERM.
        if gone.worker in ended:
            allowed |= {-signal.SIGTERM, -signal.SIGKILL}
        where = f"w{gone.worker} in incarnation {gone.incarnation}"
        if gone.code not in allowed:
            found.append(
                f"{where} ended with {gone.code}, expected one of {sorted(allowed)}: {sorted(gone.told)}"
            )
        if gone.code == PREEMPTED and not start.checkpoints:
            found.append(f"{where} says {PREEMPTED}, and nothing is committed")
    return found


def _recorded(folder: Path, worker: int) -> dict[_Key, Any]:
    """The sums over the state at every boundary that a worker has passed, in all starts of the launcher."""
    found: dict[_Key, Any] = {}
    for path in sorted(folder.glob(f"*.w{worker:05d}.jsonl")):
        for text in path.read_text(errors="replace").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue  # The last one of a process that was killed.
            if line.get("what") == "at" and "digests" in line:
                key = (line["phase"], line["epoch"], line["batch"], line["step"])
                found.setdefault(key, line["digests"])
                if found[key] != line["digests"]:
                    found[(*key, path.name)] = line["digests"]
    return found


def _ran(output: str) -> list[str]:
    """Each step with its logs and what it drew; a line that a kill has cut is none."""
    return [line for line in output.splitlines() if re.fullmatch(r"RAN \d+ \d+ \{.*\} \[.*\]", line)]


def _left(directory: Path) -> list[str]:
    """Attempts without a manifest and half-written files, which the save at the end has to have swept."""
    attempts = [path for path in directory.glob("step-*/*") if not (path / "MANIFEST.json").exists()]
    half = [path for path in directory.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)]
    return [f"{path.relative_to(directory)} is left" for path in attempts + half]


def _tail(output: str) -> str:
    return "\n".join(f"    | {line}" for line in output.splitlines()[-25:])
