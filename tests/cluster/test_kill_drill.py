"""The drill on two real workers: killed without a notice, struck in a validation and in the middle of a save."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.testing import DrillVerdict, drill
from tests.cluster.harness import QUIET_CPU

SCRIPT = Path(__file__).parent / "scripts" / "train.py"


def drilled(folder: Path, *script_args: str, **options: Any) -> DrillVerdict:
    """Drills the script on two workers. Fails unless every bit was the same."""
    temporary = folder / "temporary"
    temporary.mkdir()
    verdict = drill(
        SCRIPT, folder / "output", "unused", "--strategy", "mwms", *script_args,
        workers=2, timeout=900, save_every=4, cwd=folder, log=folder / "log",
        environment={**QUIET_CPU, "TMPDIR": str(temporary)}, **options,
    )  # fmt: skip
    assert verdict.identical, verdict
    assert list(temporary.iterdir()) == []
    return verdict


@pytest.mark.chaos
def test_a_worker_that_is_killed_takes_the_other_with_it_and_both_go_on_from_the_last_checkpoint(
    tmp_path: Path,
) -> None:
    verdict = drilled(tmp_path, "--epochs", "2", kill=True, at=["step:5", "saving:2"], seed=3)
    output = (tmp_path / "log").read_text()
    assert output.count("was killed as planned; the newest checkpoint is of step") == 2
    assert re.search(r"w\d was killed \(SIGKILL\)", output)
    # The other one is told apart: it lost its peer, by itself or with the launcher's help.
    assert re.search(
        r"w\d (has lost another worker|failed .*: a consequence|was ended by the launcher)", output
    )
    assert verdict.steps_lost
    assert re.match(r"VERDICT: identical .* [1-9]\d* steps? run again", output.splitlines()[-1])


@pytest.mark.chaos
def test_moments_of_ones_own_leave_the_same_bits(tmp_path: Path) -> None:
    moments = ["validation", "saving", "leaving:15"]
    verdict = drilled(tmp_path, "--epochs", "3", at=moments, preempt=1, seed=4)
    assert len(verdict.preemptions) == 4
    assert {each.moment for each in verdict.preemptions} == {"step", "validation", "saving", "leaving"}
    assert verdict.steps_lost == 0
