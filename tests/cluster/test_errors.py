"""An error of one worker's fit ends the fits of all, as the same error, told by whom; and it is no preemption.

| where a worker fails | `make test` | chaos |
|---|---|---|
| in a training step, without memory | x | |
| in an epoch's last hook (worker 0, which hosts the coordination service) | x | |
| in a hook: a builtin, a class of its own, Ctrl-C, sys.exit; in the last epoch's last hook; in validation | | x |
| killed | x (tests/cluster/test_crashes.py) | x |
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.process.exit_codes import EXIT_WORKER_LOST
from tests.cluster.harness import describe, run_cluster
from tests.cluster.small_fit import contents

SCRIPT = Path(__file__).parent / "scripts" / "failing.py"
TOLD_APART = (0, 42, 69, 75, 143)
"""What the exit status of an error is not: that training is over, a preemption, or the loss of a worker."""

BOUND = 5.0
"""Seconds between the end of the fit that fails and that of the other, on a machine that does much else."""

PLACES = [
    pytest.param("step", 1, "ResourceExhaustedError", "OOM when allocating tensor", id="step"),
    pytest.param("epoch end", 0, "DataLossError", "the table of the metrics is torn", id="epoch end"),
    *[
        pytest.param(*place, marks=pytest.mark.chaos, id=f"{place[0]} {place[1]}")
        for member in (0, 1)
        for place in (
            ("hook", member, "ValueError", "the learning rate of step 4 is negative"),
            ("own type", member, "RuntimeError", "CheckpointError: a class that the others may not have"),
            ("interrupt", member, "RuntimeError", "KeyboardInterrupt"),
            ("exit", member, "RuntimeError", "SystemExit: 3"),
            ("last epoch end", member, "ValueError", "the report cannot be written"),
            ("validation", member, "OSError", "the validation data is gone"),
            ("step", member, "ResourceExhaustedError", "OOM when allocating tensor"),
        )
    ],
]


@dataclass(frozen=True)
class Ended:
    """How the two workers ended, what each said of it, and the events of each."""

    codes: list[int]
    outputs: list[str]
    said: list[dict[str, Any]]
    events: list[list[dict[str, Any]]]


def fail(directory: Path, place: str, member: int) -> Ended:
    result = run_cluster(SCRIPT, 2, args=[str(directory), place, str(member)], timeout=150)
    said = []
    for output in result.outputs:
        lines = [line.removeprefix("RAISED ") for line in output.splitlines() if line.startswith("RAISED ")]
        said.append(json.loads(lines[0]) if lines else {})
    events = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(directory.glob("events/*.jsonl"))
    ]
    return Ended(result.codes, result.outputs, said, events)


@pytest.mark.parametrize(("place", "member", "kind", "text"), PLACES)
def test_an_error_of_one_worker_reaches_the_other_as_what_it_is(
    place: str, member: int, kind: str, text: str, tmp_path: Path
) -> None:
    ended = fail(tmp_path / "run", place, member)
    failed, other = ended.said[member], ended.said[1 - member]
    shown = describe(ended.outputs)
    assert other, shown
    assert other["type"] == kind, shown
    assert other["text"].startswith(f"Worker {member}: ")
    assert text in other["text"]
    assert kind == "RuntimeError" or failed["type"] == kind
    # On one clock, since both are on one machine.
    assert other["time"] - failed["time"] < BOUND
    assert failed["time"] - other["time"] < BOUND
    for code, said in zip(ended.codes, ended.said, strict=True):
        assert code not in TOLD_APART, shown
        assert said["threads"] == []
        assert said["replaced"] == []
    origins = [next(e["origin"] for e in events if "origin" in e) for events in ended.events]
    assert origins[member] == "this worker"
    assert origins[1 - member] == "another worker"
    assert re.search(f"Worker {member} has failed.*not a preemption", ended.outputs[1 - member])
    committed = (tmp_path / "run").glob("step-*/*/MANIFEST.json")
    saved = {"last epoch end": ["step-00000006", "step-00000012"]}.get(place, ["step-00000006"])
    assert sorted(path.parent.parent.name for path in committed) == saved, contents(tmp_path / "run").keys()


@pytest.mark.chaos
@pytest.mark.parametrize("member", [0, 1])
def test_the_death_of_a_worker_is_told_from_an_error_of_the_program(member: int, tmp_path: Path) -> None:
    ended = fail(tmp_path / "run", "killed", member)
    assert ended.codes[member] == -9
    assert ended.codes[1 - member] == EXIT_WORKER_LOST
    assert ended.said[1 - member]["type"] == "WorkerLost", describe(ended.outputs)
    assert "Another worker is gone" in ended.outputs[1 - member]
    assert "has failed" not in ended.outputs[1 - member]
    origins = [event["origin"] for event in ended.events[1 - member] if "origin" in event]
    assert origins == ["the loss of a worker"]
