"""An error of one worker's fit ends the fits of all, as the same error, told by whom; and it is no preemption.

`make test` has one in a training step, `make chaos` the others. Workers that are killed are in test_crashes.py.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from tests.cluster.harness import describe, run_cluster
from tests.cluster.small_fit import contents

SCRIPT = Path(__file__).parent / "scripts" / "failing.py"
TOLD_APART = (0, 42, 69, 75, 143)
"""What the exit status of an error is not: that training is over, a preemption, or the loss of a worker."""

BOUND = 5.0
"""Seconds between the end of the fit that fails and that of the other, on a machine that does much else."""

ERRORS = {
    "step": ("ResourceExhaustedError", "OOM when allocating tensor"),
    "hook": ("ValueError", "the learning rate of step 4 is negative"),
    "own type": ("RuntimeError", "CheckpointError: a class that the others may not have"),
    "interrupt": ("RuntimeError", "KeyboardInterrupt"),
    "exit": ("RuntimeError", "SystemExit: 3"),
    "last epoch end": ("ValueError", "the report cannot be written"),
    "validation": ("OSError", "the validation data is gone"),
    "epoch end": ("DataLossError", "the table of the metrics is torn"),
}
"""By the place where a worker fails: what the other one raises."""

IN_MAKE_TEST = ("step", 1)


@pytest.mark.parametrize(
    ("place", "member"),
    [
        pytest.param(*case, marks=() if case == IN_MAKE_TEST else pytest.mark.chaos)
        for case in itertools.product(ERRORS, (0, 1))
    ],
)
def test_an_error_of_one_worker_reaches_the_other_as_what_it_is(
    place: str, member: int, tmp_path: Path
) -> None:
    kind, text = ERRORS[place]
    directory = tmp_path / "run"
    result = run_cluster(SCRIPT, 2, args=[str(directory), place, str(member)], timeout=150)
    shown = describe(result.outputs)
    ends = []
    for output in result.outputs:
        lines = [line.removeprefix("RAISED ") for line in output.splitlines() if line.startswith("RAISED ")]
        ends.append(json.loads(lines[0]) if lines else {})
    failed, other = ends[member], ends[1 - member]
    assert other, shown
    assert other["type"] == kind, shown
    assert other["text"].startswith(f"Worker {member}: ")
    assert text in other["text"]
    assert kind == "RuntimeError" or failed["type"] == kind
    # On one clock, since both are on one machine.
    assert other["time"] - failed["time"] < BOUND
    assert failed["time"] - other["time"] < BOUND
    for code, said in zip(result.codes, ends, strict=True):
        assert code not in TOLD_APART, shown
        assert said["threads"] == []
        assert said["replaced"] == []
    logs = sorted(directory.glob("events/*.jsonl"))
    told = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
    origins = [next(e["origin"] for e in events if "origin" in e) for events in told]
    assert origins[member] == "this worker"
    assert origins[1 - member] == "another worker"
    assert re.search(f"Worker {member} has failed.*not a preemption", result.outputs[1 - member])
    committed = directory.glob("step-*/*/MANIFEST.json")
    saved = {"last epoch end": ["step-00000006", "step-00000012"]}.get(place, ["step-00000006"])
    assert sorted(path.parent.parent.name for path in committed) == saved, contents(directory).keys()
