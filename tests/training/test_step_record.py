from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from keras_preempt.agreement.alignment import Position
from keras_preempt.process import environment
from keras_preempt.training import step_record
from keras_preempt.training.step_record import StepRecord, digests, record_name


def test_without_the_variable_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.DRILL_RECORD, raising=False)
    assert StepRecord.from_environment(0, dict, 0) is None


def test_each_boundary_is_on_disk_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.DRILL_RECORD, str(tmp_path))
    monkeypatch.setenv(environment.INCARNATION, "2")
    weights = np.zeros(3, np.float32)
    record = StepRecord.from_environment(1, lambda: {"model/kernel": weights}, weights.nbytes)
    assert record is not None
    record.begin(4, "step-00000004/a", False, "why", ["Warm"])
    record.boundary(Position(0, "epoch", 0, 4), None)
    record.boundary(Position(0, "train", 0, 4), {"loss": np.float32(0.5), "vector": np.zeros(2)})
    weights[1] = 1.0
    record.boundary(Position(0, "train", 1, 5), {})
    record.sources(["a"])
    found = [json.loads(line) for line in (tmp_path / record_name(2, 1)).read_text().splitlines()]
    record.close()
    begin = {"what": "begin", "step": 4, "restored": "step-00000004/a", "exact": False, "why": "why"}
    assert found[0] == {**begin, "unsaved": ["Warm"], "fit": "", "directory": "", "files": {}, "shared": []}
    assert "digests" not in found[1]
    assert found[2]["logs"] == {"loss": 0.5}
    assert found[2]["digests"].keys() == {"weights"}
    assert found[2]["digests"] != found[3]["digests"]
    assert found[4] == {"what": "sources", "found": ["a"]}


def test_a_large_state_is_summed_up_at_some_executions_only(tmp_path: Path) -> None:
    record = StepRecord(tmp_path / "r", dict, 2 * step_record.SUMMED_AT_ONCE, steps_per_execution=2)
    for step in range(0, 24, 2):
        record.boundary(Position(0, "train", step, step), {})
    record.boundary(Position(1, "end", 0, 26), {})
    record.close()
    found = [json.loads(line) for line in (tmp_path / "r").read_text().splitlines()]
    assert [line["step"] for line in found if "digests" in line] == [0, 6, 12, 18, 26]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("model/dense/kernel", "weights"),
        ("optimizer/adam/velocity", "optimizer"),
        ("metrics/loss/total@1", "metrics"),
        ("model/dropout/seed_generator/seed_generator_state@0", "random seeds"),
        ("keras/global_seed@0", "random seeds"),
        ("else", "other state"),
    ],
)
def test_a_change_of_any_tensor_changes_the_sum_of_its_group(name: str, group: str) -> None:
    before, after = digests({name: np.array([1.0, 2.0])}), digests({name: np.array([1.0, 2.5])})
    assert before.keys() == after.keys() == {group}
    assert before != after


def test_strings_scalars_and_empty_tensors_have_a_sum() -> None:
    words = digests({"a": np.array([b"x", b"y"], object)})
    assert words != digests({"a": np.array([b"x", b"z"], object)})
    assert digests({"a": np.float32(1).reshape(()), "b": np.zeros((0, 2))})
