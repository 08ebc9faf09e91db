"""A record of steps is on disk at once, and its checksums tell any change of the state."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_preempt.agreement.messages import Position
from keras_preempt.drilled import step_record
from keras_preempt.drilled.places import record_name
from keras_preempt.drilled.step_record import Begun, StepRecord, digests
from keras_preempt.process import environment


def test_each_boundary_is_on_disk_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.DRILL_RECORD, str(tmp_path))
    monkeypatch.setenv(environment.INCARNATION, "2")
    weights = np.zeros(3, np.float32)
    record = StepRecord.from_environment(1, lambda: {"model/kernel": weights}, weights.nbytes)
    assert record is not None
    record.begin(Begun(4, "step-00000004/a", ["why"], ["Warm"]))
    record.boundary(Position(0, "epoch", 0, 4), None)
    record.boundary(Position(0, "train", 0, 4), {"loss": np.float32(0.5), "vector": np.zeros(2)})
    weights[1] = 1.0
    record.boundary(Position(0, "train", 1, 5), {})
    record.sources(["a"])
    found = [json.loads(line) for line in (tmp_path / record_name(2, 1)).read_text().splitlines()]
    record.close()
    assert [found[0][key] for key in ("what", "step", "exact", "why")] == ["begin", 4, False, ["why"]]
    assert (found[0]["restored"], found[0]["unsaved"]) == ("step-00000004/a", ["Warm"])
    assert "digests" not in found[1]
    assert found[2]["logs"] == {"loss": 0.5}
    assert found[2]["digests"].keys() == {"weights"}
    assert found[2]["digests"] != found[3]["digests"]
    assert found[4] == {"what": "sources", "found": ["a"]}


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.filterwarnings("error")
def test_what_an_error_missed_is_recorded_whether_or_not_training_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    left_open: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", left_open.append)
    record = StepRecord(tmp_path / "r", dict, 0, 1)
    if ended:
        record.close()
    record.missed(["Warm"])
    if not ended:
        record.boundary(Position(0, "validation", 0, 4), None)
    record.close()
    found = [json.loads(line)["what"] for line in (tmp_path / "r").read_text().splitlines()]
    assert found == (["missed"] if ended else ["missed", "at"])
    assert not left_open


def test_a_large_state_is_summed_up_at_some_executions_only(tmp_path: Path) -> None:
    record = StepRecord(tmp_path / "r", dict, 2 * step_record.SUMMED_AT_ONCE, steps_per_execution=3)
    for step in range(0, 24, 3):
        record.boundary(Position(0, "train", step, step), {})
    record.boundary(Position(1, "end", 0, 26), {})
    record.close()
    found = [json.loads(line) for line in (tmp_path / "r").read_text().splitlines()]
    assert [line["step"] for line in found if "digests" in line] == [0, 9, 18, 26]


GROUPS = {
    "model/dense/kernel": "weights",
    "optimizer/adam/velocity": "optimizer",
    "metrics/loss/total@1": "metrics",
    "model/dropout/seed_generator/seed_generator_state@0": "random seeds",
    "keras/global_seed@0": "random seeds",
    "else": "other state",
}


def test_a_change_of_any_tensor_changes_the_sum_of_its_group_whatever_it_holds() -> None:
    for name, group in GROUPS.items():
        before, after = digests({name: np.array([1.0, 2.0])}), digests({name: np.array([1.0, 2.5])})
        assert before.keys() == after.keys() == {group}
        assert before != after

    # So do strings, scalars and empty tensors.
    words = digests({"a": np.array([b"x", b"y"], object)})
    assert words != digests({"a": np.array([b"x", b"z"], object)})
    assert digests({"a": np.float32(1).reshape(()), "b": np.zeros((0, 2))})
