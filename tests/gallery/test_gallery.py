"""Each script of the gallery, preempted, gives the result that the log promised before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gallery.catalogue import SCRIPTS, Script
from tests.gallery.drilled import TIMEOUT, drill, load_records, record_of


@pytest.mark.timeout(TIMEOUT + 60)
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, id=script.name, marks=[] if script.short else [pytest.mark.chaos])
        for script in SCRIPTS
    ],
)
def test_what_the_log_promises_of_a_script_is_what_comes_out(script: Script, tmp_path: Path) -> None:
    outcome = drill(script, tmp_path)
    assert not outcome.problems(script), f"{outcome.problems(script)}\n{outcome.output}"
    assert record_of(outcome) == load_records()[script.name], (
        f"docs/gallery.md shows something else. Run: python -m tests.gallery --write {script.name} && "
        "python docs/gallery_table.py"
    )
