"""What single checks of the doctor find, without a trial. No test here needs TensorFlow."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.cli.doctor import meeting, mounts, storage, surroundings
from keras_preempt.cli.doctor.finding import Finding, Findings
from keras_preempt.cli.doctor.meeting import JobWorker, Meeting
from keras_preempt.cli.doctor.surroundings import check_platform, check_versions
from keras_preempt.cli.terminal import shown_size
from keras_preempt.cluster.local import find_free_ports
from keras_preempt.notices.platform import MACHINES, SCHEDULERS
from keras_preempt.process.environment import GRACE_PERIOD, PLATFORM
from keras_preempt.testing import FakeGcs
from tests.cli.doctor.doctored import doctor
from tests.cli.saved_run import contents

RUN = Path(__file__).parents[2] / "formats" / "format-1"
NOTICES = {
    "generic": "SIGTERM, coordination key",
    "slurm": "SIGTERM, coordination key",
    "gce-gpu": "SIGTERM, gce, coordination key",
    "aws": "SIGTERM, aws, coordination key",
    "azure": "SIGTERM, azure, coordination key",
    "kubernetes+gce-tpu": "SIGTERM, gce, coordination key",
}


def of(check: str, findings: Findings) -> Finding:
    """The only finding of a check."""
    (finding,) = [finding for finding in findings.all if finding.check == check]
    return finding


def test_a_run_that_is_there_says_how_large_a_checkpoint_is(tmp_path: Path) -> None:
    run = shutil.copytree(RUN, tmp_path / "run")
    files = contents(run)
    size = shown_size(sum(len(data) for path, data in files.items() if "step-" in path))
    report = doctor(str(run))
    report.assert_passes()
    found = report.findings
    assert found["save"]["level"] == "ok"
    assert found["save"]["what"].startswith(f"A save of {size} (the largest checkpoint in DIR) took ")
    assert found["room"]["what"].startswith(f"2 checkpoints of {size} ")
    assert contents(run) == files


def test_a_staging_disk_without_room_or_that_cannot_be_used_is_found(tmp_path: Path) -> None:
    with FakeGcs() as gcs:
        asked = ("gs://bucket/run", "--staging-dir", str(tmp_path), "--state-size")
        report = doctor(*asked, "900000GB", env=gcs.environment())
        assert f"are staged in {tmp_path} on their way to the bucket" in report.cure("staging")
        assert "a save would fail" in report.cure("staging")
        assert "on a larger local disk" in report.cure("staging")
        assert report.problems == {"staging"}
        assert report.findings["save"]["level"] == "not checked"
        cured = doctor(*asked, "1MB", env=gcs.environment())
        cured.assert_passes()
        assert cured.findings["staging"]["level"] == cured.findings["save"]["level"] == "ok"
        assert list(tmp_path.iterdir()) == []
        report = doctor(*asked, "1MB", "--staging-dir", str(tmp_path / "gone"), env=gcs.environment())
        assert str(tmp_path / "gone") in report.cure("staging")
        assert "a directory on a local disk" in report.cure("staging")
        assert report.problems == {"staging"}


def test_a_staging_disk_in_memory_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_text("20 1 0:1 / / rw - tmpfs tmpfs rw\n")
    monkeypatch.setattr(mounts, "MOUNTINFO", str(tmp_path / "mountinfo"))
    findings = Findings()
    assert storage.check_free_space(findings, GcsStore("gs://bucket/run"), 1, 2, 1, str(tmp_path))
    assert of("staging", findings).level == "warning"
    assert "it is memory (tmpfs)" in of("staging", findings).what


class Clocks:
    """Stands in for the module `time`: in some threads, it is later."""

    monotonic, sleep = staticmethod(time.monotonic), staticmethod(time.sleep)

    def __init__(self, ahead: dict[str, float]) -> None:
        self._ahead = ahead

    def time(self) -> float:
        return time.time() + self._ahead.get(threading.current_thread().name, 0.0)


def met(places: list[Path], patience: float = 60.0, addresses: tuple[str, ...] = ()) -> list[Findings]:
    """What workers find who look for each other from threads, each in its own place."""
    found = [Findings() for _ in places]

    def hold(index: int, place: Path) -> None:
        job = JobWorker(index, len(places), addresses, "test")
        Meeting(LocalStore(place), "the directory", job, patience).hold(found[index])

    workers = [
        threading.Thread(target=hold, args=each, name=f"worker {each[0]}") for each in enumerate(places)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    return found


@pytest.mark.parametrize(("ahead", "level"), [(60.0, "warning"), (-60.0, "warning"), (0.5, "ok")])
def test_clocks_of_workers_that_differ_are_found(
    ahead: float, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "time", Clocks({"worker 1": ahead}))
    for findings in met([tmp_path] * 2):
        assert of("shared", findings).level == "ok"
        assert of("clocks", findings).level == level
        if level == "warning":
            # Less is known for sure: the files took a moment.
            assert "differs from this one's by at least" in of("clocks", findings).what
            assert 30 < float(of("clocks", findings).what.partition("at least ")[2].partition(" s.")[0]) <= 60
            assert "chrony" in of("clocks", findings).cure


def test_a_directory_that_workers_do_not_share_is_found(tmp_path: Path) -> None:
    addresses = tuple(f"127.0.0.1:{port}" for port in find_free_ports(2))
    for findings in met([tmp_path / "disk-of-0", tmp_path / "disk-of-1"], 1.0, addresses):
        assert [each.check for each in findings.all if each.level == "problem"] == ["shared"]
        assert "They run, since they answer on their ports" in of("shared", findings).what
        assert "the URL of a bucket" in of("shared", findings).cure
    for findings in met([tmp_path / "shared"] * 2, addresses=addresses):
        assert [(each.check, each.level) for each in findings.all] == [
            ("shared", "ok"),
            ("ports", "ok"),
            ("clocks", "ok"),
        ]


def test_a_port_that_another_program_has_is_found(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses = tuple(f"127.0.0.1:{port}" for port in (taken.getsockname()[1], *find_free_ports(1)))
        first, second = met([tmp_path] * 2, 3.0, addresses)  # The other program holds a worker up for one.
    (own,), (other,) = ([each for each in it.all if each.level == "problem"] for it in (first, second))
    assert own.check == other.check == "ports"
    assert "another program has the port" in own.what
    assert f"worker 0 ({addresses[0]})" in other.what


@pytest.fixture
def keras_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    return tmp_path / "keras.json"


def backend() -> list[Finding]:
    findings = Findings()
    check_versions(findings)
    return [finding for finding in findings.all if finding.check == "backend"]


def test_another_backend_is_found(keras_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keras_home.write_text('{"backend": "numpy", "floatx": "float32"}')
    (in_file,) = backend()
    keras_home.write_text('{"backend": "tensorflow"}')
    monkeypatch.setenv("KERAS_BACKEND", "numpy")
    (in_environment,) = backend()
    for finding in (in_file, in_environment):
        assert finding.level == "problem"
        assert "Received: 'numpy'" in finding.what
        assert "KERAS_BACKEND to tensorflow, jax or torch" in finding.cure
        assert "keras.json" in finding.cure
    for name in ("tensorflow", "jax"):
        monkeypatch.setenv("KERAS_BACKEND", name)
        assert backend() == []


@pytest.mark.parametrize(
    ("backend", "installed", "level", "words"),
    [
        ("tensorflow", {"keras": "3.7.0", "tensorflow": "2.20.0"}, ["problem", "ok"], "'keras>=3.8.0'"),
        ("tensorflow", {"keras": "99.0", "tensorflow": "2.20.0"}, ["warning", "ok"], "newest verified"),
        ("jax", {"keras": "3.15.1", "jax": "0.10.2"}, ["ok", "ok"], "jax 0.10.2"),
        ("jax", {"keras": "3.15.1", "tensorflow": "2.21.0"}, ["ok", "problem"], "keras-preempt[jax]"),
        ("jax", {"keras": "3.8.0", "jax": "0.6.0"}, ["ok", "ok"], "jax 0.6.0"),
        ("jax", {"keras": "3.7.0", "jax": "0.10.2"}, ["problem", "ok"], "keras>=3.8.0"),
        ("jax", {"keras": "3.15.1", "jax": "0.4.30"}, ["ok", "problem"], "jax>=0.6.0"),
        ("jax", {"keras": "3.15.1", "jax": "9.0"}, ["ok", "warning"], "jax 9.0 is newer"),
    ],
)
def test_versions_of_keras_and_its_backend_outside_the_verified_range_are_reported(
    backend: str, installed: dict[str, str], level: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", backend)
    monkeypatch.setattr(surroundings, "version_of", installed.get)
    findings = Findings()
    check_versions(findings)
    assert [finding.level for finding in findings.all] == level
    assert any(words in f"{finding.what} {finding.cure}" for finding in findings.all)


@pytest.mark.parametrize(("missing", "there"), [("tensorflow", "jax"), ("jax", "tensorflow")])
def test_the_backend_that_is_there_is_named_where_keras_is_set_to_another(
    missing: str, there: str, keras_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "jax":  # TensorFlow is what Keras runs on without a word.
        monkeypatch.setenv("KERAS_BACKEND", missing)
    monkeypatch.setattr(surroundings, "version_of", {"keras": "3.15.1", there: "9.1"}.get)
    findings = Findings()
    check_versions(findings)
    (problem,) = [each for each in findings.all if each.level == "problem"]
    assert f"Received: {there} 9.1 alone." in problem.what
    assert problem.cure.startswith(f"Set KERAS_BACKEND={there} for the job")


@pytest.mark.parametrize("text", ['{"backend": "tensorflow"}', "{}", "[]", "no JSON", None])
def test_keras_json_without_another_backend_is_good(text: str | None, keras_home: Path) -> None:
    if text is not None:
        keras_home.write_text(text)
    assert backend() == []


def platform(
    monkeypatch: pytest.MonkeyPatch, given: float | None = None, workers: int = 2, **variables: Any
) -> Findings:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    findings = Findings()
    check_platform(findings, given, workers)
    return findings


@pytest.mark.parametrize(("workers", "backend"), [(2, "tensorflow"), (1, "tensorflow"), (2, "jax")])
@pytest.mark.parametrize("name", NOTICES)
def test_the_notices_that_are_heard_are_named(
    name: str, workers: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = platform(monkeypatch, workers=workers, **{PLATFORM: name, "KERAS_BACKEND": backend})
    has_key = (workers, backend) == (2, "tensorflow")
    heard = NOTICES[name] if has_key else NOTICES[name].removesuffix(", coordination key")
    assert f"Notices from {heard}; " in of("platform", findings).what
    only_signals = [finding.what for finding in findings.all if finding.check == "notices"]
    assert any("SIGTERM is the only notice" in what for what in only_signals) == (name == "generic")


def test_the_grace_of_the_environment_is_counted_on_if_it_is_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = {PLATFORM: "aws", GRACE_PERIOD: "45"}
    found = of("grace", platform(monkeypatch, **variables))
    assert found.what.startswith(f"45 s from a notice to the end are counted on: {GRACE_PERIOD}.")
    found = of("grace", platform(monkeypatch, 20.0, **variables))
    assert found.what == "20 s from a notice to the end, as --grace says."
    (found,) = platform(monkeypatch, **{PLATFORM: "aws", GRACE_PERIOD: "soon"}).all
    assert (found.check, found.level) == ("platform", "problem")
    assert GRACE_PERIOD in found.what
    assert "'soon'" in found.what


def test_of_a_scheduler_on_a_machine_the_shorter_grace_is_counted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, machine = SCHEDULERS["sagemaker"].grace, MACHINES["gce-gpu"].grace
    assert scheduler.seconds > machine.seconds
    found = of("grace", platform(monkeypatch, **{PLATFORM: "sagemaker+gce-gpu"}))
    assert found.what.startswith(f"{machine.seconds:g} s")
