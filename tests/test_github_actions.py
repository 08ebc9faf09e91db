"""The example workflow for GitHub Actions is one, and its commands do what they say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.harness import QUIET_CPU
from tests.docs.pages import files

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "github-actions"
FAKE = ROOT / "tests" / "cli" / "drill" / "fake_training.py"


@pytest.fixture(scope="module")
def workflow() -> Any:
    return yaml.safe_load((EXAMPLE / "preemption.yml").read_text())


def test_it_is_a_workflow(workflow: Any) -> None:
    # YAML 1.1 reads the key "on" as true.
    assert set(workflow) == {"name", True, "permissions", "jobs"}
    assert {"push", "pull_request", "schedule"} == set(workflow[True])
    ((name, job),) = workflow["jobs"].items()
    assert re.fullmatch(r"[a-z]+", name)
    assert job["timeout-minutes"] <= 360, "the longest that GitHub's own machines run"
    assert all(isinstance(value, str) for value in job["env"].values())
    for step in job["steps"]:
        assert ("run" in step) != ("uses" in step)
        assert set(step) <= {"name", "run", "uses", "with", "if"}
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/x@v1"))


def test_what_it_installs_exists(workflow: Any) -> None:
    (install,) = [step["run"] for step in steps(workflow) if step.get("name") == "Install"]
    assert install == "pip install 'keras-preempt[tensorflow]' pytest"
    assert '\ntensorflow = ["tensorflow' in (ROOT / "pyproject.toml").read_text()


def steps(workflow: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = workflow["jobs"]["drill"]["steps"]
    return found


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("stand-in", ""),
        pytest.param("stand-in", "weights", marks=pytest.mark.chaos),
        pytest.param("train.py of the pages", "", marks=[pytest.mark.chaos, pytest.mark.timeout(3600)]),
    ],
)
def test_its_commands_find_what_a_preemption_changes_and_nothing_else(
    script: str, fault: str, workflow: Any, tmp_path: Path
) -> None:
    real = script != "stand-in"
    (tmp_path / "train.py").write_text(files()["train.py"] if real else FAKE.read_text())
    (tmp_path / "tests").mkdir()
    shutil.copy(EXAMPLE / "test_preemption.py", tmp_path / "tests")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, words in {"python": "", "keras-preempt": "-m keras_preempt"}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        **QUIET_CPU,
        **workflow["jobs"]["drill"]["env"],
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "FAKE_FAULT": fault,
    }
    ended = {}
    for step in steps(workflow):
        if "run" in step and step["name"] != "Install":
            # As GitHub runs a step for which no shell is named.
            shell = ["bash", "-e", "-c", step["run"]]
            done = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, timeout=1500)
            ended[step["name"]] = done.returncode
    assert ended == {"Test": 1 if fault else 0, "Drill": 1 if fault else 0, "Tell": 0}
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert verdict["verdict"] == ("different" if fault else "identical")
    summary = (tmp_path / "summary.md").read_text()
    assert f"## Drill: {verdict['verdict']}\nseed {verdict['seed']}, 2 preemptions" in summary
    assert ("not restored" in summary) is bool(fault)
    assert {path.name for path in (tmp_path / "drill").iterdir()} == {"undisturbed", "preempted"}
