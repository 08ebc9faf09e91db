"""However a fit ends, its process is as it was before: handlers, threads, children, temporary files; and its status."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage.store import TEMPORARY_PREFIX
from keras_preempt.testing import FakeMetadata
from tests.cluster.harness import start_cluster

SCRIPT = Path(__file__).parent / "scripts" / "exits.py"

WAYS: dict[str, tuple[int, str, list[int]]] = {
    "preempted": (75, "SystemExit", [6]),
    "gce": (143, "SystemExit", [6]),
    "error": (1, "InvalidArgumentError", [2, 4]),
    "finish": (0, "NoneType", [16]),
    "interrupt": (-signal.SIGINT, "KeyboardInterrupt", [6]),
}
"""The exit status, the error, and the possible steps of the last checkpoint."""

MORE = ("finish", "interrupt")
"""In `make chaos`; in one process these are in test_ctrl_c.py."""


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.chaos if way in MORE else ()) for way in WAYS]
)
def test_however_a_fit_ends_its_process_is_as_it_was_before(way: str, tmp_path: Path) -> None:
    status, error, possible = WAYS[way]
    directory, temporary = tmp_path / "run", tmp_path / "tmp"
    temporary.mkdir()
    platform = "gce-gpu" if way == "gce" else "generic"
    with FakeMetadata(["gce"]) as fake:
        env = {"TMPDIR": str(temporary), "KERAS_PREEMPT_PLATFORM": platform, **fake.environment}
        with start_cluster(SCRIPT, 1, args=[str(directory), way], env=env) as running:
            if way == "gce":
                running.wait_for_line(0, "^STRIKE")
                fake.gce.preempt()
            result = running.wait(180).assert_codes(status)
    (said,) = [line for line in result.outputs[0].splitlines() if line.startswith("LEFT ")]
    assert json.loads(said.removeprefix("LEFT ")) == {
        "error": error,
        "handlers": [True, True],
        "interrupt": True,
        "wakeup": True,
        "threads": [],
        "children": False,
        "files": 0,
    }
    assert list(temporary.iterdir()) == []
    assert not [path for path in directory.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)]

    # The last good checkpoint is there. Two epochs of 8 steps, saved every 2; what strikes does so when step 5 begins,
    # and a notice lets it be run. An error can come while the save of step 4 is being written.
    committed = sorted(path.parent.parent.name for path in directory.glob("step-*/*/MANIFEST.json"))
    assert committed[-1] in [f"step-{step:08d}" for step in possible]
