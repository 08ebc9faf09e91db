"""Workers whose callbacks write one file are told so before the first step; each cure that is named works."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest

from tests.cluster.harness import run_cluster
from tests.cluster.jax_training import ON_JAX

SCRIPT = Path(__file__).parent / "scripts" / "shared_files.py"
FILES = {"best.keras": "ModelCheckpoint", "best.weights.h5": "ModelCheckpoint", "log.csv": "CSVLogger"}
ENDS = [("best", ".keras"), ("best", ".weights.h5"), ("log", ".csv")]


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


def run_on_jax(how: str, folder: Path) -> list[str]:
    arguments = [how, str(folder / "run")]
    result = run_cluster(SCRIPT, 2, args=arguments, env=ON_JAX, timeout=240, cwd=folder).assert_ok()
    return result.outputs


def test_on_jax_where_all_save_a_model_together_the_cure_is_a_path_for_each(tmp_path: Path) -> None:
    first, _ = run_on_jax("same", tmp_path)
    for file, callback in FILES.items():
        (line,) = (line for line in first.splitlines() if f"{tmp_path / file} of {callback}" in line)
        assert "Put the worker's number in the path (jax.process_index())" in line
        alone = "pass CSVLogger on worker 0 alone" in line
        assert alone == (callback == "CSVLogger")
        assert ("all workers have to save a model together" in line) != alone


def test_on_jax_a_model_that_some_processes_alone_save_is_told_before_the_first_step(tmp_path: Path) -> None:
    first, _ = run_on_jax("first", tmp_path)
    expected = "ModelCheckpoint is passed on worker 0 alone. On JAX all workers have to save a model together"
    assert first.count(expected) == 1


@pytest.mark.chaos
def test_on_jax_a_path_for_each_process_works_and_is_not_warned_of(tmp_path: Path) -> None:
    outputs = run_on_jax("own", tmp_path)
    assert not any("write the same file" in output or " alone" in output for output in outputs)
    written = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    assert written == sorted(f"{name}{n}{end}" for name, end in ENDS for n in (0, 1))
