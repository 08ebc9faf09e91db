"""Each script of the gallery, preempted, gives the result that the log promised before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gallery.catalogue import SCRIPTS, Script
from tests.gallery.drilled import TIMEOUT, drill, load_records, record_of
from tests.gallery.on_jax import on_jax


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


@pytest.mark.chaos
@pytest.mark.timeout(TIMEOUT + 60)
@pytest.mark.parametrize("name", sorted(load_records("jax")))
def test_so_it_is_where_keras_runs_on_jax(name: str, tmp_path: Path) -> None:
    (script,) = (there for each in SCRIPTS if (there := on_jax(each)) is not None and each.name == name)
    outcome = drill(script, tmp_path, "jax")
    assert not outcome.problems(script), f"{outcome.problems(script)}\n{outcome.output}"
    assert record_of(outcome) == load_records("jax")[name]
