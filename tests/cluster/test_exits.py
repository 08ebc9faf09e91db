"""However a fit ends, its process is as it was before: handlers, threads, children, temporary files; and its status."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint.storage.store import TEMPORARY_PREFIX
from keras_preempt.testing import FakeMetadata
from tests.cluster.harness import describe, start_cluster

SCRIPT = Path(__file__).parent / "scripts" / "exits.py"

STATUS = {"finish": 0, "preempted": 75, "gce": 143, "error": 1, "interrupt": -signal.SIGINT}
ERROR = {
    "finish": "NoneType",
    "preempted": "SystemExit",
    "gce": "SystemExit",
    "error": "InvalidArgumentError",
    "interrupt": "KeyboardInterrupt",
}

ways = pytest.mark.parametrize("way", STATUS)


@dataclass(frozen=True)
class Ended:
    """A process that is over: its exit code and output, what it said of itself, and its folders."""

    code: int
    output: str
    left: dict[str, Any]
    directory: Path
    temporary: Path


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """One process for each way to end, all at once."""
    found = {}
    with ExitStack() as stack:
        running = {}
        fake = stack.enter_context(FakeMetadata(["gce"]))
        for way in STATUS:
            folder = tmp_path_factory.mktemp(way)
            (folder / "tmp").mkdir()
            platform = "gce-gpu" if way == "gce" else "generic"
            env = {
                "TMPDIR": str(folder / "tmp"),
                "KERAS_PREEMPT_PLATFORM": platform,
                **fake.environment,
            }
            command = start_cluster(SCRIPT, 1, args=[str(folder / "run"), way], env=env)
            running[way] = (folder, stack.enter_context(command))
        running["gce"][1].wait_for_line(0, "^STRIKE")
        fake.gce.preempt()
        for way, (folder, cluster) in running.items():
            result = cluster.wait(180)
            lines = [line for line in result.outputs[0].splitlines() if line.startswith("LEFT ")]
            assert len(lines) == 1, describe(result.outputs)
            left = json.loads(lines[0].removeprefix("LEFT "))
            found[way] = Ended(result.codes[0], result.outputs[0], left, folder / "run", folder / "tmp")
    return found


@ways
def test_the_exit_status_says_how_it_ended(way: str, ended: dict[str, Ended]) -> None:
    assert ended[way].left["error"] == ERROR[way], ended[way].output
    assert ended[way].code == STATUS[way], ended[way].output


@ways
def test_the_earlier_signal_handlers_are_back(way: str, ended: dict[str, Ended]) -> None:
    left = ended[way].left
    assert left["handlers"] == [True, True]
    assert left["interrupt"]
    assert left["wakeup"]


@ways
def test_no_thread_child_or_open_file_is_left(way: str, ended: dict[str, Ended]) -> None:
    left = ended[way].left
    assert left["threads"] == []
    assert not left["children"]
    assert left["files"] == 0


@ways
def test_no_temporary_file_is_left(way: str, ended: dict[str, Ended]) -> None:
    assert list(ended[way].temporary.iterdir()) == []
    names = [path.name for path in ended[way].directory.rglob("*")]
    assert [name for name in names if name.startswith(TEMPORARY_PREFIX)] == []


@ways
def test_the_last_good_checkpoint_is_there(way: str, ended: dict[str, Ended]) -> None:
    committed = sorted(
        path.parent.parent.name for path in ended[way].directory.glob("step-*/*/MANIFEST.json")
    )
    # Two epochs of 8 steps, saved every 2; what strikes does so when step 5 begins, and a notice lets it be run. An
    # error can come while the save of step 4 is being written.
    possible = {"finish": [16], "preempted": [6], "gce": [6], "error": [2, 4], "interrupt": [6]}[way]
    assert committed[-1] in [f"step-{step:08d}" for step in possible]
