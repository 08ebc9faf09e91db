"""Drills a script of the gallery unchanged, and compares what the log said before the first step with the result."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from tests.cluster.harness import all_fresh, keras_preempt
from tests.gallery.catalogue import Identical, Said, Script

ROOT = Path(__file__).parents[2]
IDENTICAL, DIFFERENT = 0, 1
RECORDS = {
    "tensorflow": Path(__file__).with_name("verdicts.json"),
    "jax": Path(__file__).with_name("verdicts_jax.json"),
}
"""The file of records for each backend of Keras."""
TIMEOUT = 1500.0
_PROMISE = re.compile(r"After a preemption: (?:bit-identical|exact if)\b")
_DENIAL = re.compile(r"\bNOT (?:exact|bit-identical)\b")
_EXCEPTION = re.compile(f"{_DENIAL.pattern}|\\bexact except\\b")
_ABOUT = re.compile(f"{_PROMISE.pattern}|{_EXCEPTION.pattern}")
_SAID = re.compile(r"keras_preempt: (.*)")
#: What Keras prints when a fit begins, and its progress, which is all that a fit of one epoch prints.
_FIRST_EPOCH = re.compile(r"Epoch 1/\d+$")
_PROGRESS = re.compile(r"(?:\x1b\[[\d;]*m)*\s*\d+/\d+(?:\x1b\[[\d;]*m)* (?:\x1b\[[\d;]*m)*[-━]")
_PLACE = re.compile(r"\S*/(?:undisturbed|preempted)(?:/[\w.-]+-[0-9a-f]{8})?(?:/fit-\d+)?")
_WORKER = "[w0] "


@dataclass(frozen=True)
class Outcome:
    """The result of a drill.

    Attributes:
        status: The exit status of the drill.
        said: What the log promised before the first step of each fit of the undisturbed run, in order. It does not
            repeat itself for a fit that it has nothing new to say of.
        late: Promises and exceptions that came after the last fit had begun to train, in either run.
        verdict: The last line of the drill.
        output: Everything that it printed.
    """

    status: int
    said: Sequence[Sequence[str]]
    late: Sequence[str]
    verdict: str
    output: str

    @property
    def promised(self) -> bool:
        """Whether the log promised the same bits for every fit, without an exception."""
        return (
            bool(self.said)
            and all(not any(map(_EXCEPTION.search, lines)) for lines in self.said)
            and any(map(_PROMISE.search, self.said[0]))
        )

    @property
    def denied(self) -> bool:
        """Whether the log said of a fit that it will certainly not be exact."""
        return any(_DENIAL.search(line) for lines in self.said for line in lines)

    def problems(self, script: Script) -> list[str]:
        """Returns what contradicts the verdict of the catalogue, or the log; empty if nothing does."""
        if self.status not in (IDENTICAL, DIFFERENT):
            return [f"no verdict: the drill ended with status {self.status}"]
        found = []
        if not self.said or not self.said[0]:
            found.append("the log promised nothing before the first step")
        if self.promised and self.status == DIFFERENT:
            found.append("the log promised the same bits, and the result is another one")
        by_chance = isinstance(script.verdict, Said) and script.verdict.by_chance
        if self.denied and self.status == IDENTICAL and not by_chance:
            found.append("the log said that it will not be exact, and the result is the same")
        if self.late:
            found.append(f"said too late: {self.late[0]}")
        expected = IDENTICAL if isinstance(script.verdict, Identical) else DIFFERENT
        if self.status != expected and not by_chance:
            found.append(
                f"expected the result to be {'the same' if expected == IDENTICAL else 'another one'}"
            )
        if not any(re.search(script.verdict.match, line) for lines in self.said for line in lines):
            found.append(
                f"expected the log to say something like {script.verdict.match!r} before the first step"
            )
        return found


def drill(script: Script, folder: Path, backend: str = "tensorflow", *options: str) -> Outcome:
    """Drills a script in an empty folder: a preemption at a training step, and one in a validation if it has any.

    `options` are further ones of the command.

    With ``KERAS_PREEMPT_FRESH_PROCESSES=1``, as `make chaos FRESH=1` has it, each process starts from scratch.
    """
    done = subprocess.run(
        [*keras_preempt(), "drill", *moments(script), *options, "--", sys.executable, str(script.path)],
        cwd=folder,
        env={**os.environ, **environment(), "KERAS_BACKEND": backend},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
    )
    return read(done.returncode, done.stdout)


def moments(script: Script) -> list[str]:
    """The moments of a script's preemptions, drawn by its name: always the same ones."""
    drawn = random.Random(script.name)
    arguments = ["--preempt", "1", "--seed", str(drawn.randrange(1000))]
    if script.validations:
        # Not the last one: a signal that comes at its end finds that training is over.
        arguments += ["--at", f"validation:{drawn.randint(1, max(1, script.validations - 1))}"]
    return arguments


def read(status: int, output: str) -> Outcome:
    """Reads what a drill printed."""
    undisturbed, _, preempted = output.partition("drill 2 of 2")
    said: list[list[str]] = []
    pending: list[str] = []
    for line in _of_worker(undisturbed):
        if _FIRST_EPOCH.match(line) or (pending and _PROGRESS.match(line)):
            said.append(pending)
            pending = []
        elif (found := _SAID.search(line)) and _ABOUT.search(found[1]):
            pending.append(_PLACE.sub("DIRECTORY", found[1]))
    known = {line for lines in said for line in lines}
    late = pending
    for line in _of_worker(preempted):
        if (found := _SAID.search(line)) and _EXCEPTION.search(found[1]):
            text = _PLACE.sub("DIRECTORY", found[1])
            if text not in known:
                late.append(text)
    verdict = next((line for line in reversed(output.splitlines()) if line.startswith("VERDICT")), "")
    return Outcome(status, said, late, verdict, output)


def _of_worker(output: str) -> list[str]:
    return [line.removeprefix(_WORKER) for line in output.splitlines() if line.startswith(_WORKER)]


def environment() -> dict[str, str]:
    """Quiet and on the CPU; otherwise as a user runs it."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "KERAS_PREEMPT_PLATFORM": "generic"}
    if all_fresh():
        return quiet
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]  # The drill runs in a folder of its own.
    return {**quiet, "PYTHONPATH": os.pathsep.join(filter(None, path))}


# -- Records: verdicts.json and verdicts_jax.json, from which docs/gallery.md is written -----


class Record(TypedDict):
    """The result of one drill: the verdict, and what the log said before the first step, each line once."""

    verdict: str
    said: list[str]


def record_of(outcome: Outcome) -> Record:
    """Returns the part of an outcome that is recorded."""
    verdict = "identical" if outcome.status == IDENTICAL else "different"
    return {"verdict": verdict, "said": _once(line for lines in outcome.said for line in lines)}


def load_records(backend: str = "tensorflow") -> dict[str, Record]:
    """Returns all records of a backend by the name of the script."""
    if not RECORDS[backend].exists():
        return {}
    alike = json.loads(RECORDS[backend].read_text(encoding="utf-8"))
    return {name: {"verdict": e["verdict"], "said": e["said"]} for e in alike for name in e["scripts"]}


def save_records(records: dict[str, Record], backend: str = "tensorflow") -> None:
    """Writes all records of a backend, those that are alike as one, in the order of their names."""
    alike: list[dict[str, Any]] = []
    for name, record in sorted(records.items()):
        known = next((each for each in alike if record.items() <= each.items()), None)
        if known is None:
            alike.append(known := {**record, "scripts": []})
        known["scripts"].append(name)
    text = json.dumps(alike, indent=1, sort_keys=True, ensure_ascii=False)
    RECORDS[backend].write_text(f"{text}\n", encoding="utf-8")


def _once(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))
