"""What the doctor finds out about a directory or bucket. No test here needs TensorFlow."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.cli.doctor.meeting import job_of
from keras_preempt.cluster import worker_environment
from keras_preempt.cluster.local import find_free_ports
from keras_preempt.cluster.tf_config import tf_config_of
from keras_preempt.process.environment import DRILL_DIRECTORY
from keras_preempt.testing import FakeGcs
from tests.cli.doctor.doctored import ENV, Report, doctor, report_of, start
from tests.test_jobset import pod


def test_the_files_of_a_run_are_left_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("theirs")
    report = doctor(str(tmp_path), "--state-size", "1MB", "--workers", "2")
    report.assert_passes()
    assert report.findings["shared"]["level"] == "ok", "workers on one machine look for each other"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert (tmp_path / "run.json").read_text() == "theirs"


def test_a_directory_that_cannot_be_made_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "another directory" in doctor(str(tmp_path / "file" / "run")).cure("directory")
    report = doctor(str(tmp_path / "runs" / "1"), "--state-size", "1MB")
    report.assert_passes()
    assert {"directory", "durable", "room", "save"} <= set(report.findings)
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing stays"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"needs the right to mount: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_no_room_for_one_more_than_max_to_keep_is_found(small_disk: Path) -> None:
    asked = (str(small_disk), "--state-size", "3MB")
    report = doctor(*asked)
    assert "max_to_keep" in report.cure("room")
    assert "is memory" in report.cure("durable")
    assert doctor(*asked, "--max-to-keep", "1").problems == {"durable"}
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    cured = doctor(*asked)
    assert cured.problems == {"durable"}
    assert cured.findings["save"]["level"] == "ok"


def test_a_directory_that_cannot_be_written_is_cured_by_what_hinders_it(small_disk: Path) -> None:
    (small_disk / "file").write_bytes(bytes(100))
    assert "is a file: remove it" in doctor(str(small_disk / "file")).cure("directory")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    said = doctor(str(small_disk)).cure("directory")
    assert "Read-only file system" in said
    assert "mounted read-only, which no permission changes" in said
    assert "chown" not in said
    subprocess.run(["mount", "-o", "remount,rw,nr_inodes=2", small_disk], check=True)
    full = doctor(str(small_disk)).cure("directory")
    assert "No space left on device" in full
    assert "free some space (files, if `df -i` shows no free inodes)" in full


def test_a_save_that_does_not_fit_the_grace_is_found() -> None:
    with FakeGcs(bytes_per_second=20e6) as gcs:
        asked = ("gs://bucket/run", "--state-size", "20MB", "--grace")
        assert "more grace" in doctor(*asked, "0.5", env=gcs.environment()).cure("save")
        cured = doctor(*asked, "120", env=gcs.environment())
        cured.assert_passes()
        assert cured.findings["save"]["level"] == "ok"
        assert gcs.objects("bucket") == {}


def variables_of(kind: str, workers: int) -> list[dict[str, str]]:
    """The variables by which each worker of one job knows its place among the others."""
    addresses = [f"127.0.0.1:{port}" for port in find_free_ports(workers)]
    configs = [tf_config_of(addresses, index) for index in range(workers)]
    if kind == "TF_CONFIG":
        return [{"TF_CONFIG": json.dumps(config)} for config in configs]
    if kind == "Keras":
        return [{**worker_environment(config), "TF_CONFIG": ""} for config in configs]
    if kind == "Slurm":
        tasks = {"SLURM_STEP_NUM_TASKS": str(workers)}
        return [{**tasks, "SLURM_PROCID": str(index)} for index in range(workers)]
    network = {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent / "pod_network"), ENV["PYTHONPATH"]]),
        # All pods listen on one port; another run of this test beside this one has addresses of its own.
        "POD_NETWORK": f"127.{random.randrange(1, 255)}.{random.randrange(255)}",
    }
    return [{**pod(0, index, pods=workers), **network} for index in range(workers)]


def as_cluster(directories: list[str], *more: str, kind: str = "TF_CONFIG") -> list[Report]:
    """A doctor for each directory, started as the workers of one job are, each with its own."""
    started = zip(directories, variables_of(kind, len(directories)), strict=True)
    processes = [start(directory, *more, env=env) for directory, env in started]
    return [report_of(process) for process in processes]


REAL = [*(pytest.param(kind, marks=pytest.mark.chaos) for kind in ("Keras", "Slurm")), "TF_CONFIG", "JobSet"]


@pytest.mark.parametrize("kind", ["TF_CONFIG", "Keras", "Slurm", "JobSet"])
def test_a_worker_knows_its_place_by_the_variables_of_every_kind_of_job(kind: str) -> None:
    jobs = [job_of(variables) for variables in variables_of(kind, 2)]
    assert [job and (job.index, job.workers) for job in jobs] == [(0, 2), (1, 2)]
    assert [job and len(job.addresses) for job in jobs] == [0 if kind == "Slurm" else 2] * 2


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"NUM_PROCESSES": "2", "PROCESS_ID": "1", "JOB_ADDRESSES": "a:1,b:1"}, (1, 2, ("a:1", "b:1"))),
        ({"NUM_PROCESSES": "2", "PROCESS_ID": "0", "JOB_ADDRESSES": "a:1"}, (0, 2, ())),
        ({"NUM_PROCESSES": "1", "PROCESS_ID": "0"}, None),
        ({"NUM_PROCESSES": "2"}, "error"),
        ({"NUM_PROCESSES": "2", "PROCESS_ID": "2"}, "error"),
        ({"NUM_PROCESSES": "3", "PROCESS_ID": "0", "JOB_ADDRESSES": "a:1,b:1"}, "error"),
    ],
)
def test_the_job_is_what_keras_distribution_initialize_would_be_told(variables: Any, wanted: Any) -> None:
    variables = {f"KERAS_DISTRIBUTION_{name}": value for name, value in variables.items()}
    if wanted == "error":
        with pytest.raises(ValueError, match="KERAS_DISTRIBUTION_PROCESS_ID one below it"):
            job_of(variables)
        return
    job = job_of(variables)
    assert (job and (job.index, job.workers, job.addresses)) == wanted


@pytest.mark.parametrize("kind", REAL)
def test_the_workers_of_a_job_try_it_in_one_place(kind: str, tmp_path: Path) -> None:
    says_where = f"import os; print('place:', os.environ['{DRILL_DIRECTORY}'])"
    command = ("--", sys.executable, "-c", says_where)
    reports = as_cluster([str(tmp_path / "shared")] * 2, *command, kind=kind)
    places = [place for report in reports for place in re.findall("place: (.*)", report.errors)]
    assert len(set(places)) == 1, places
    assert places[0].startswith(str(tmp_path / "shared"))
    for report in reports:
        levels = {name: report.findings.get(name, {}).get("level") for name in ("shared", "ports", "clocks")}
        # Slurm's variables do not say where a task listens.
        assert levels == {"shared": "ok", "ports": None if kind == "Slurm" else "ok", "clocks": "ok"}
    assert list(tmp_path.iterdir()) == []
