"""Workers whose callbacks write one file are told so before the first step; each cure that is named works."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest

from tests.cluster.harness import run_cluster

SCRIPT = Path(__file__).parent / "scripts" / "shared_files.py"
FILES = {"best.keras": "ModelCheckpoint", "best.weights.h5": "ModelCheckpoint", "log.csv": "CSVLogger"}


def test_one_file_of_two_workers_is_named_with_the_cure(tmp_path: Path) -> None:
    result = run_cluster(
        SCRIPT, 2, args=["same", str(tmp_path / "run")], timeout=240, cwd=tmp_path
    ).assert_ok()
    first, second = result.outputs
    for file, callback in FILES.items():
        (line,) = (line for line in first.splitlines() if f"{tmp_path / file} of {callback}" in line)
        assert "Workers 0, 1 write the same file" in line
        assert "pass " + callback + " on worker 0 alone" in line
    assert "write the same file" not in second


@pytest.mark.parametrize("cure", [pytest.param("own", marks=pytest.mark.chaos), "first"])
def test_the_cures_work_and_are_not_warned_of(tmp_path: Path, cure: str) -> None:
    result = run_cluster(SCRIPT, 2, args=[cure, str(tmp_path / "run")], timeout=240, cwd=tmp_path).assert_ok()
    assert not any("write the same file" in output for output in result.outputs)
    written = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    numbers = ("0", "1") if cure == "own" else ("",)
    assert written == sorted(
        name for n in numbers for name in (f"best{n}.keras", f"best{n}.weights.h5", f"log{n}.csv")
    )
    for number in numbers:
        model = keras.models.load_model(tmp_path / f"best{number}.keras")
        model.load_weights(tmp_path / f"best{number}.weights.h5")
        assert len((tmp_path / f"log{number}.csv").read_text().splitlines()) == 3
