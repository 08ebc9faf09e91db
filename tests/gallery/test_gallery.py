"""Each script of the gallery, preempted, gives the result that the log promised before the first step."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from tests.cluster.harness import python
from tests.gallery.catalogue import SCRIPTS, Identical, Script
from tests.gallery.drilled import TIMEOUT, drill, environment, load_records, record_of
from tests.gallery.on_jax import on_jax

WITH_OR_WITHOUT = Path(__file__).with_name("with_or_without.py")


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


@pytest.mark.chaos
@pytest.mark.timeout(TIMEOUT + 60)
@pytest.mark.parametrize(("script", "backend"), cases())
def test_a_standby_changes_neither_the_verdict_nor_the_log(
    script: Script, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "KERAS_PREEMPT_FRESH_PROCESSES", "1"
    )  # A forked process has imported everything anyway.
    outcome = drill(script, tmp_path, backend, "--standby")
    assert not outcome.problems(script), f"{outcome.problems(script)}\n{outcome.output}"
    assert record_of(outcome) == load_records(backend)[script.name], outcome.output
    assert "no standby" not in outcome.output


def compared() -> list[ParameterSet]:
    """All of them again; `make test` has the shortest, the others are chaos."""
    return [
        pytest.param(
            *case.values,
            id=case.id,
            marks=[]
            if case.id == "structured_data/tabular_with_py_dataset-tensorflow"
            else [pytest.mark.chaos],
        )
        for case in cases()
    ]


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize(("script", "backend"), compared())
def test_without_a_preemption_our_line_changes_nothing_of_it(
    script: Script, backend: str, tmp_path: Path
) -> None:
    changed = differences(script, backend, tmp_path, "plain", "ours")
    repeatable = isinstance(script.verdict, Identical)
    if changed and not repeatable and differences(script, backend, tmp_path, "plain", "plain again"):
        pytest.skip("two runs without our line differ as well")
    assert not changed


def named(path: Path) -> Path:
    """The path of a file without the time and the process that TensorBoard puts into the name of its own."""
    return path.with_name(re.sub(r"(?<=events\.out\.tfevents\.).*", "", path.name))


def differences(script: Script, backend: str, folder: Path, *lines: str) -> list[str]:
    """Returns the names of what differs in two runs of a script: its History, its weights, its files."""
    results, files = [], []
    for line in lines:
        place = folder / line
        place.mkdir(exist_ok=True)
        done = subprocess.run(
            [*python(), str(WITH_OR_WITHOUT), str(script.path), str(folder / "results.npz"), line],
            cwd=place,
            env={**os.environ, **environment(), "KERAS_BACKEND": backend},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT / 2,
        )
        assert done.returncode == 0, done.stdout
        with np.load(folder / "results.npz") as loaded:
            results.append({name: (loaded[name].dtype, loaded[name].tobytes()) for name in loaded})
        files.append({named(path.relative_to(place)) for path in place.rglob("*") if path.is_file()})
    first, second = results
    assert len(first) > 2, "nothing was recorded"
    ours = {path for path in files[1] - files[0] if path.parts[0] == "runs"}
    return sorted(
        [
            *(name for name in first.keys() | second.keys() if first.get(name) != second.get(name)),
            *map(str, (files[0] ^ files[1]) - ours),
        ]
    )
