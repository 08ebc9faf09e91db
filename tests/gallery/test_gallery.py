"""Each script of the gallery, preempted, gives the result that the log promised before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.gallery.catalogue import SCRIPTS, Script
from tests.gallery.drilled import TIMEOUT, drill, load_records, record_of
from tests.gallery.on_jax import on_jax


def cases() -> list[ParameterSet]:
    """Every script on each backend that it runs on; those that are not in the short form are chaos."""
    found = []
    for script in SCRIPTS:
        for backend, there in (("tensorflow", script), ("jax", on_jax(script))):
            if there is not None:
                marks = [] if there.short else [pytest.mark.chaos]
                found.append(pytest.param(there, backend, id=f"{script.name}-{backend}", marks=marks))
    return found


@pytest.mark.timeout(TIMEOUT + 60)
@pytest.mark.parametrize(("script", "backend"), cases())
def test_what_the_log_promises_of_a_script_is_what_comes_out(
    script: Script, backend: str, tmp_path: Path
) -> None:
    outcome = drill(script, tmp_path, backend)
    assert not outcome.problems(script), f"{outcome.problems(script)}\n{outcome.output}"
    assert record_of(outcome) == load_records(backend)[script.name], (
        f"docs/gallery.md shows something else. Run: python -m tests.gallery --write {script.name} && "
        "python docs/gallery_table.py"
    )
