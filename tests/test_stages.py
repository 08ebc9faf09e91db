"""The stages of `make test`, and what is kept of how long they take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import durations, stages

ONE_OF_EACH = (
    "def test_a(n): assert n < 2\n\n\ndef test_b(): pass\n\n\n@pytest.mark.skip\ndef test_c(): pass\n"
)


def test_every_place_is_there_and_every_file_is_in_one_stage() -> None:
    places = [place for stage in stages.STAGES for place in stage.places]
    assert len(places) == len(set(places))
    assert [place for place in places if not (stages.TESTS / place).exists()] == []
    files = {stages.stage_of(path) for path in stages.TESTS.rglob("test_*.py")}
    assert files == set(range(len(stages.STAGES)))


def test_a_file_belongs_to_the_stage_with_the_longest_path_to_it() -> None:
    assert stages.stage_of(stages.TESTS / "test_of_the_root.py") == 2
    assert stages.stage_of(stages.TESTS / "agreement" / "test_member.py") == 0
    assert stages.stage_of(stages.TESTS / "training" / "test_fit.py") == 1


@pytest.mark.parametrize("processes", [(), ("-n", "2")])
def test_what_tests_took_is_measured_and_kept(
    processes: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = tmp_path / "report.json"
    file = tmp_path / "test_one.py"
    file.write_text(f"import pytest\n\n\n@pytest.mark.parametrize('n', [1, 2])\n{ONE_OF_EACH}")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(stages.TESTS.parent / "pyproject.toml"),
        "-q",
        *processes,
    ]
    command += ["--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-p", "tests.conftest", str(file)]
    command += ["--stage-report", str(report)]
    ended = subprocess.run(command, cwd=stages.TESTS.parent, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    found = json.loads(report.read_text())
    assert found["outcomes"] == {"passed": 2, "failed": 1, "skipped": 1}
    (tests,) = found["tests"].values()
    assert {name: taken[0] for name, taken in tests.items()} == {"test_a": 2, "test_b": 1, "test_c": 1}
    assert found["seconds"] >= found["collection"] >= 0

    monkeypatch.setattr(durations, "KEPT", tmp_path / "durations.json")
    durations.main(["lint", "12"])
    durations.renew([{**found, "stage": 0, "seconds": 1.5}])
    durations.main([])
    shown = capsys.readouterr().out
    assert "4 tests" in shown
    assert "1.5 s for stage 1" in shown
    assert "12.0 s for lint of .ci/run" in shown
