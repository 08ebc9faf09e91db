"""Storage that fails in mid-run: training goes on, what was committed stays, and the exit says what is lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage.store import TEMPORARY_PREFIX
from keras_preempt.process.exit_codes import EXIT_NOT_SAVED
from tests.cluster.harness import RunningCluster
from tests.cluster.small_fit import STEPS, fit

SCRIPT = Path(__file__).parent / "scripts" / "failing_storage.py"
EPOCHS = 4
ANYWHERE = ("file size", "permission", "removed", "emptied")
MOUNTED = ("full", "read-only")
"""In `make chaos`."""
WHY = {
    "full": "No space left on device",
    "file size": "File too large",
    "permission": "Permission denied",
    "read-only": "Read-only file system",
    "removed": "removed, emptied or unmounted",
    "emptied": "removed, emptied or unmounted",
}

#: What root may do in spite of permissions is taken from the process, and with it the right to mount.
WITHOUT_PRIVILEGES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--")


def run(folder: Path, kinds: tuple[str, ...], wrapper: tuple[str, ...] = ()) -> dict[str, str]:
    """Runs the fits of the kinds in one process; returns what each printed, by kind."""
    command = [*wrapper, sys.executable, str(SCRIPT), str(folder), *kinds]
    with RunningCluster(command, 1) as running:
        result = running.wait(240)
    result.assert_codes(EXIT_NOT_SAVED)
    output = result.outputs[0]
    return {kind: output.partition(f"BEGINS {kind}\n")[2].partition(f"\nENDS {kind}: ")[0] for kind in kinds}


Found = tuple[Path, dict[str, str]]


@pytest.fixture(scope="module")
def without_privileges(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("anywhere")
    for kind in ANYWHERE:
        (folder / kind).mkdir()
    return folder, run(folder, ANYWHERE, WITHOUT_PRIVILEGES if os.geteuid() == 0 else ())


@pytest.fixture(scope="module")
def with_mounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    folder = tmp_path_factory.mktemp("mounted")
    mounted = []
    try:
        for kind in MOUNTED:
            (folder / kind).mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder / kind)]
            if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
                pytest.skip("This process may not mount file systems.")
            mounted.append(folder / kind)
        yield folder, run(folder, MOUNTED)
    finally:
        for path in mounted:
            subprocess.run(["umount", "--lazy", path], check=False)


@pytest.mark.parametrize(
    "kind", [*ANYWHERE, *(pytest.param(kind, marks=pytest.mark.chaos) for kind in MOUNTED)]
)
def test_failing_storage_costs_only_the_saves_meanwhile(kind: str, request: pytest.FixtureRequest) -> None:
    folder, outputs = request.getfixturevalue("with_mounts" if kind in MOUNTED else "without_privileges")
    output, directory = outputs[kind], folder / kind / "run"

    # Training went on: all steps up to the one that was in flight at the notice. (Two threads write these lines.)
    assert re.findall(r"RAN (\d+)", output) == [str(step) for step in range(1, 15)]

    # One clear line for each save that failed, and none for the others.
    errors = [line for line in output.splitlines() if "was NOT saved" in line]
    assert [re.findall(r"at step (\d+) was NOT saved", line) for line in errors] == [["6"], ["8"], ["14"]], (
        output
    )
    for line in errors:
        assert WHY[kind] in line
        assert len(line) < 600
    assert "Traceback" not in output

    # The exit says what is lost, and from where the next start goes on.
    (loss,) = (line for line in output.splitlines() if "Preempted, and NOT saved" in line)
    assert re.search(
        r"NOT saved at step 14\b.* step-00000012/00001-\d+: .*since step 12 is lost \(2 steps\)", loss
    ), loss

    # The last good checkpoint is there, and only whole ones beside it.
    checkpoints = sorted(path.parent.parent.name for path in directory.glob("step-*/*/MANIFEST.json"))
    assert checkpoints == ["step-00000010", "step-00000012"]

    # The next start goes on from it, and clears away what the failed saves left.
    steps = fit(directory, epochs=EPOCHS)
    assert len(steps) == EPOCHS * STEPS - 12
    attempts = {path.parent for path in directory.glob("step-*/*/*")}
    assert all((attempt / "MANIFEST.json").exists() for attempt in attempts), (
        "of dead incarnations nothing is left"
    )
    assert not [path for path in directory.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)]
