"""The exit status is that of the table in docs/termination.md, whatever fails on the way out: whoever starts a
process reads nothing else, and takes 1 or 120 for an error of the program.

Every process is started by a shell that does with its output what a user's shell does.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from keras_preempt.checkpoint.failpoints import VARIABLE
from tests.cluster.harness import QUIET_CPU, python

SCRIPT = Path(__file__).parent / "scripts" / "statuses.py"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Case:
    """What the process is to end with, how its output is redirected, and what fails in it."""

    status: int
    redirected: str = ""
    how: str = "preempted"
    ways: str = ""
    unsaved: bool = False


CASES = {
    "closed": Case(75, ">&-"),
    "both closed": Case(75, ">&- 2>&-"),
    "full": Case(75, ">/dev/full"),
    "both full": Case(75, ">/dev/full 2>&1"),
    "broken": Case(75, "| true"),
    "full, and more at the end": Case(75, ">/dev/full", ways="atexit"),
    "handler": Case(75, ways="handler"),
    "filter": Case(75, ways="filter"),
    "atexit": Case(75, ways="atexit"),
    "another notice at the end": Case(75, ways="again"),
    "not saved": Case(74, ">/dev/full", ways="handler atexit", unsaved=True),
    "replaced": Case(74, how="replaced"),
    "loop, full": Case(75, ">/dev/full", how="loop"),
    "loop, handler": Case(75, how="loop", ways="handler"),
    "lost": Case(69, ">/dev/full", how="lost", ways="handler atexit hook"),
}
IN_MAKE_TEST = ("both closed", "not saved", "replaced", "loop, full", "lost")


def end(case: Case, directory: Path) -> tuple[int, str]:
    """Runs the process; returns its exit status, and its standard error unless that is redirected."""
    environment = {**os.environ, **QUIET_CPU, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONUNBUFFERED", None)  # Else a step's own print fails, as it does in any program.
    if case.unsaved:
        environment[VARIABLE] = "save.between-parts=raise"
    command = shlex.join([*python(), str(SCRIPT), str(directory), case.how, *case.ways.split()])
    line = f"{command} {case.redirected or '>/dev/null'}; status=$?"
    if case.redirected.startswith("|"):
        line = f"{{ {command}; echo $? >&3; }} {case.redirected}; status=0"
    reader, writer = os.pipe()
    shell = subprocess.run(
        ["bash", "-c", f"exec 3>&{writer}; {line}; echo $status >&3"],
        env=environment,
        pass_fds=[writer],
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    os.close(writer)
    with os.fdopen(reader) as told:
        return int(told.readline()), shell.stderr


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_MAKE_TEST else pytest.mark.chaos) for name in CASES]
)
def test_the_exit_status_is_true_whatever_fails_on_the_way_out(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    status, errors = end(case, tmp_path / "run")
    assert status == case.status, errors
    committed = list(
        tmp_path.glob(f"run/{'ckpt-*.index' if case.how == 'loop' else 'step-*/*/MANIFEST.json'}")
    )
    assert len(committed) == (status == 75)
    if "handler" in case.ways:
        assert errors.count("a logging handler of this program has failed (ValueError: the log") == 1
