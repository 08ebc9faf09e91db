"""What the doctor says without a trial, and how it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keras_preempt.cli.doctor.finding import Finding, Findings
from keras_preempt.cli.doctor.surroundings import check_determinism
from keras_preempt.notices.platform import MACHINES, SCHEDULERS
from tests.cli.doctor.doctored import BLOCK, doctor
from tests.cli.saved_run import Run


def test_a_problem_without_a_cure_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="Expected a cure"):
        Finding("room", "problem", "There is none.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--"],
        ["--workers", "0"],
        ["--state-size", "much"],
        ["--", "no-such-program"],
        ["--", "python", "no-such-script.py"],
        ["oss://bucket/run"],
        ["one", "two"],
    ],
)
def test_wrong_usage_has_a_status_of_its_own(arguments: list[str], run: Run) -> None:
    assert "Error: " in run("doctor", *arguments, code=2)[1]


def test_wrong_variables_of_a_job_are_wrong_usage(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    run("doctor", "--workers", "2", code=2)  # Workers are not counted twice.
    monkeypatch.delenv("TF_CONFIG")
    monkeypatch.setenv("JOBSET_NAME", "digits")
    assert "Expected REPLICATED_JOB_NAME to be set" in run("doctor", code=2)[1]


def test_what_could_not_be_checked_is_not_called_good() -> None:
    report = doctor()
    report.assert_passes()
    assert "are verified" in report.findings["versions"]["what"]
    assert report.findings["signal path"]["level"] == report.findings["directory"]["level"] == "not checked"


@pytest.mark.parametrize("name", [*MACHINES, *SCHEDULERS])
def test_every_platform_has_a_grace_that_is_counted_on(name: str) -> None:
    report = doctor(env={"KERAS_PREEMPT_PLATFORM": name})
    assert name in report.findings["platform"]["what"]
    assert "are counted on" in report.findings["grace"]["what"]
    assert "nothing is known" not in report.findings["grace"]["what"]


def test_a_wrong_variable_is_reported_as_training_would_report_it() -> None:
    assert "Correct that variable" in doctor(env={"KERAS_PREEMPT_PLATFORM": "moon"}).cure("platform")


IGNORE = ["sh", "-c", 'trap "" TERM; exec "$@"', "sh"]


def test_sigterm_that_is_ignored_or_blocked_around_the_doctor_is_found() -> None:
    assert "--default-signal=TERM" in doctor(before=IGNORE).cure("SIGTERM")
    doctor(before=[*IGNORE, "env", "--default-signal=TERM"]).assert_passes()
    assert "SIG_UNBLOCK" in doctor(before=["python3", "-c", BLOCK]).cure("SIGTERM")


@pytest.fixture
def gpu(tmp_path: Path) -> Path:
    """The root of a machine with a GPU."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    return tmp_path


def test_a_gpu_without_determinism_is_reported(gpu: Path) -> None:
    findings, train = Findings(), gpu / "train.py"
    train.write_text("fit()")
    check_determinism(findings, ["python", str(train)], gpu)
    train.write_text("tf.config.experimental.enable_op_determinism()")
    check_determinism(findings, ["python", str(train)], gpu)
    assert [finding.level for finding in findings.all] == ["warning", "ok"]


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("", "warning"),
        ("--xla_gpu_deterministic_ops=true", "ok"),
        ("--xla_dump_to=x --xla_gpu_exclude_nondeterministic_ops", "ok"),
        ("--xla_gpu_deterministic_ops=false", "warning"),
    ],
)
def test_on_jax_flags_of_xla_make_a_gpu_repeatable(
    flags: str, level: str, gpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setenv("TF_DETERMINISTIC_OPS", "1")  # Says nothing there.
    monkeypatch.setenv("XLA_FLAGS", flags)
    findings = Findings()
    check_determinism(findings, [], gpu)
    assert [finding.level for finding in findings.all] == [level]
