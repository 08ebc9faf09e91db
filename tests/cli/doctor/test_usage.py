"""What the doctor says without a trial, and how it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keras_preempt.cli.doctor.finding import Finding, Findings
from keras_preempt.cli.main import main
from keras_preempt.notices.platform import MACHINES, SCHEDULERS
from tests.cli.doctor.doctored import doctor


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
        ["s3://bucket/run"],
        ["one", "two"],
    ],
)
def test_wrong_usage_has_a_status_of_its_own(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *arguments]) == 2
    assert "Error: " in capsys.readouterr().err


def test_workers_are_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert main(["doctor", "--workers", "2"]) == 2


def test_what_could_not_be_checked_is_not_called_good() -> None:
    report = doctor()
    report.assert_passes()
    assert report.findings["signal path"]["level"] == report.findings["directory"]["level"] == "not checked"


@pytest.mark.parametrize("name", [*MACHINES, *SCHEDULERS])
def test_every_platform_has_a_grace_that_is_counted_on(name: str) -> None:
    report = doctor(env={"KERAS_PREEMPT_PLATFORM": name})
    assert name in report.findings["platform"]["what"]
    assert "are counted on" in report.findings["grace"]["what"]
    assert "nothing is known" not in report.findings["grace"]["what"]


def test_a_wrong_variable_is_reported_as_training_would_report_it() -> None:
    assert "Correct that variable" in doctor(env={"KERAS_PREEMPT_PLATFORM": "moon"}).cure("platform")


def test_sigterm_that_is_ignored_or_blocked_around_the_doctor_is_found() -> None:
    ignored = doctor(before=["sh", "-c", 'trap "" TERM; exec "$@"', "sh"])
    assert "--default-signal=TERM" in ignored.cure("SIGTERM")
    doctor(
        before=["sh", "-c", 'trap "" TERM; exec "$@"', "sh", "env", "--default-signal=TERM"]
    ).assert_passes()
    block = (
        "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); "
        "os.execvp(sys.argv[1], sys.argv[1:])"
    )
    assert "SIG_UNBLOCK" in doctor(before=["python3", "-c", block]).cure("SIGTERM")


@pytest.mark.parametrize(
    ("installed", "problem"), [("3.7.0", "pip install 'keras>=3.8.0'"), ("99.0", "newest verified")]
)
def test_versions_outside_the_verified_range_are_reported(
    installed: str, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from keras_preempt.cli.doctor import software

    monkeypatch.setattr(software, "_version", lambda package: installed if package == "keras" else "2.20.0")
    main(["doctor"])
    assert problem in capsys.readouterr().out


def test_a_gpu_without_determinism_is_reported(tmp_path: Path) -> None:
    from keras_preempt.cli.doctor.software import check_determinism

    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    findings = Findings()
    train = tmp_path / "train.py"
    train.write_text("fit()")
    check_determinism(findings, ["python", str(train)], tmp_path)
    train.write_text("tf.config.experimental.enable_op_determinism()")
    check_determinism(findings, ["python", str(train)], tmp_path)
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
    flags: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from keras_preempt.cli.doctor.software import check_determinism

    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setenv("TF_DETERMINISTIC_OPS", "1")  # Says nothing there.
    monkeypatch.setenv("XLA_FLAGS", flags)
    findings = Findings()
    check_determinism(findings, [], tmp_path)
    assert [finding.level for finding in findings.all] == [level]
