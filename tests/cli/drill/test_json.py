"""``keras-preempt drill --json`` prints one object that docs/drill-schema.json describes, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from keras_preempt.cli.drill.result import DrillResult
from tests.cli.drill.test_command import drill
from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def schema() -> Any:
    found = json.loads((ROOT / "docs" / "drill-schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(found)
    assert set(found["required"]) == set(json.loads(DrillResult(1, 0).to_json(3, "none was made")))
    return found


def told(schema: Any, *options: str, **what: Any) -> dict[str, Any]:
    result = drill("--json", *options, code=None, **what)
    assert result.stdout.count("\n") == 1, result.stdout + result.stderr
    assert "drill 1 of 2" in result.stderr
    value: dict[str, Any] = json.loads(result.stdout)
    jsonschema.Draft202012Validator(schema).validate(value)
    assert value["exit_status"] == result.returncode
    return value


def test_an_identical_run_is_reported_with_what_the_verdict_does_not_cover(schema):
    env = {"FAKE_FITS": "a,b", "FAKE_UNSAVED": "Warm", "FAKE_DOUBT": "1 shuffle has no seed"}
    value = told(schema, "--seed", "7", "--at", "step:25", "--workers", "2", env=env)
    assert (value["verdict"], value["workers"]) == ("identical", 2)
    assert (value["steps"], value["steps_lost"]) == (40, 0)
    (preemption,) = value["preemptions"]
    assert (preemption["step"], preemption["fit"], preemption["moment"]) == (25, 2, "step")
    assert preemption["sent"] == "SIGTERM from outside"
    assert value["tensors_compared"] == 6
    assert [fit["directory"] for fit in value["fits"]] == ["a", "b"]
    assert [fit["promised_exact"] for fit in value["fits"]] == [False] * 2
    assert [fit["promise"] for fit in value["fits"]] == ["1 shuffle has no seed"] * 2
    callbacks, data, *_ = value["uncovered"]
    assert "Warm" in callbacks
    assert "1 shuffle has no seed" in data


def test_exact_if_is_no_promise_and_its_condition_is_told(schema):
    condition = "the Python code of the training data gives the same again when it is asked again"
    (fit,) = told(schema, "--at", "step:5", env={"FAKE_CONDITION": condition})["fits"]
    assert (fit["promised_exact"], fit["promised_if"], fit["promise"]) == (False, condition, "")
    (fit,) = told(schema, "--at", "step:5")["fits"]
    assert (fit["promised_exact"], fit["promised_if"]) == (True, None)


def test_a_different_run_is_reported_with_its_first_step_and_its_causes(schema):
    value = told(schema, "--at", "step:7", "--kill", "--save-every", "5", fault="weights")
    assert value["verdict"] == "different"
    assert [each["name"] for each in value["tensors_different"]] == ["weights"]
    assert value["first_different_step"] == {
        "fit": 1,
        "step": 5,
        "epoch": 0,
        "worker": 0,
        "restart": 1,
        "what": ["weights"],
    }
    assert value["steps_lost"] == 2
    assert any("not restored" in cause for cause in value["likely_causes"])


@pytest.mark.parametrize(
    ("options", "fault", "status", "why"),
    [
        (("--at", "step:4"), "crash", 3, "the preempted run failed (exit code 3)"),
        (("--at", "step:4"), "deaf", 3, "expected 1 preemption. Received: 0"),
        (("--at", "step:4"), "silent", 3, "did not report a finished fit"),
        (("--at", "step:20"), "", 4, "--at step:20 lies beyond the end: the run has 20 training steps"),
    ],
)
def test_a_drill_without_a_verdict_says_why(schema, options, fault, status, why):
    value = told(schema, *options, fault=fault)
    assert (value["verdict"], value["exit_status"]) == ("none", status)
    assert why in value["why_none"]


def test_the_schema_refuses_what_the_drill_does_not_say(schema):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate({"format": 1, "verdict": "perhaps"})
