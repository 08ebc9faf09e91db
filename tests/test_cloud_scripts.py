"""The shell scripts of examples/gce and examples/tpu_vm, with stand-ins for gcloud, systemctl and the metadata."""

from __future__ import annotations

import http.server
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.cluster import tf_config_from_hosts
from keras_preempt.process.exit_codes import EXIT_RESTART_TPU
from tests.docs.built_site import listening

EXAMPLES = Path(__file__).parents[1] / "examples"
STAND_INS = Path(__file__).with_name("gcloud_stand_in")


class Cloud:
    """Runs a script under the stand-ins; knows what it called."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(
        self, script: str, *arguments: str, plan: dict[str, list[tuple[str, int]]] | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        (self._folder / "plan.json").write_text(json.dumps(plan or {}))
        path = EXAMPLES / script
        return subprocess.run(
            ["bash", path.name, *arguments],
            cwd=path.parent,
            env={
                "PATH": os.pathsep.join(
                    [str(STAND_INS), str(Path(sys.executable).parent), os.environ["PATH"]]
                ),
                "FAKE_GCLOUD": str(self._folder),
                **env,
            },
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self, words: str, program: str = "calls") -> list[list[str]]:
        file = self._folder / f"{program}.jsonl"
        calls = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [call for call in calls if words in " ".join(call)]


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path)


@pytest.fixture
def attributes() -> Iterator[tuple[str, dict[str, str]]]:
    """A metadata server that knows the attributes of an instance: its address, and the attributes."""
    known: dict[str, str] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/computeMetadata/v1/instance/attributes/")
            found = name in known and self.headers["Metadata-Flavor"] == "Google"
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(known[name].encode() if found else b"")

        def log_message(self, *arguments: Any) -> None:
            pass

    with listening(Handler) as address:
        yield address, known


def options(call: list[str]) -> dict[str, str]:
    return dict(
        word.removeprefix("--").split("=", 1) for word in call if word.startswith("--") and "=" in word
    )


def test_group_has_machines_of_the_names_that_they_are_told(cloud, attributes, tmp_path):
    done = cloud.run("gce/create.sh", IMAGE="image", DIRECTORY="gs://bucket/run", COUNT="3")
    assert done.returncode == 0, done.stderr
    (template,) = cloud.calls("instance-templates create")
    assert options(template)["provisioning-model"] == "SPOT"
    assert [options(call)["instance"] for call in cloud.calls("create-instance")] == [
        "trainer-0",
        "trainer-1",
        "trainer-2",
    ]

    # On a machine: what the template gives it becomes the unit and its variables.
    address, known = attributes
    for entry in options(template)["metadata"].split(","):
        name, _, value = entry.partition("=")
        known[name] = value
    for entry in options(template)["metadata-from-file"].split(","):
        name, _, file = entry.partition("=")
        known[name] = (EXAMPLES / "gce" / file).read_text()
    unit, variables = tmp_path / "train.service", tmp_path / "train.env"
    done = cloud.run("gce/startup.sh", GCE_METADATA_HOST=address, UNIT=str(unit), ENVIRONMENT=str(variables))
    assert done.returncode == 0, done.stderr
    assert unit.read_text() == (EXAMPLES / "gce" / "train.service").read_text()
    found = dict(shlex.split(line)[0].split("=", 1) for line in variables.read_text().splitlines())
    assert found["DIRECTORY"] == "gs://bucket/run"
    full_name = "trainer-1.us-central1-a.c.project.internal"
    assert tf_config_from_hosts(found["WORKERS"].split(), full_name)["task"]["index"] == 1
    assert cloud.calls("", "systemctl") == [["daemon-reload"], ["start", "--no-block", "train.service"]]


def test_machine_without_its_metadata_starts_nothing(cloud, attributes, tmp_path):
    unit = str(tmp_path / "train.service")
    done = cloud.run("gce/startup.sh", GCE_METADATA_HOST=attributes[0], UNIT=unit, ENVIRONMENT=unit)
    assert done.returncode != 0
    assert not cloud.calls("", "systemctl")


@pytest.mark.parametrize("missing", ["IMAGE", "DIRECTORY"])
def test_group_is_not_begun_without_what_it_needs(cloud, missing):
    given = {"IMAGE": "image", "DIRECTORY": "gs://bucket/run", missing: ""}
    done = cloud.run("gce/create.sh", **given)
    assert done.returncode != 0
    assert f"Expected {missing}" in done.stderr
    assert not cloud.calls("")


TPU = {"ACCELERATOR": "v4-32", "RUNTIME": "runtime", "POLL_SECONDS": "0"}
RUNS = "--worker=0 --command"
STATE = "queued-resources describe"


def test_tpu_that_was_taken_away_is_replaced_and_the_training_goes_on(cloud):
    states = [("", 1), ("WAITING_FOR_RESOURCES", 0), ("ACTIVE", 0), ("SUSPENDED", 0), ("", 1), ("ACTIVE", 0)]
    runs = [("", EXIT_RESTART_TPU), ("", 0)]
    done = cloud.run("tpu_vm/train.sh", "gs://bucket/run", plan={STATE: states, RUNS: runs}, **TPU)
    assert done.returncode == 0, done.stderr
    assert "Preempted, and saved" in done.stdout
    assert len(cloud.calls("queued-resources create")) == 2
    assert len(cloud.calls("queued-resources delete")) == 1
    first, second = cloud.calls(RUNS)
    assert first == second, "what resumes is the same command"
    command = options(first)["command"]
    assert shlex.split(command)[-1] == "gs://bucket/run"
    assert "--once" in command, "in one process it would wait for workers that never come back"


def test_connection_that_is_lost_with_the_machine_is_no_crash(cloud):
    plan = {STATE: [("ACTIVE", 0)] * 3, RUNS: [("", 255), ("", 255), ("", 0)]}
    assert cloud.run("tpu_vm/train.sh", "gs://b/r", plan=plan, MAX_CRASHES="0", **TPU).returncode == 0


def test_program_that_crashes_again_and_again_is_given_up(cloud):
    plan = {STATE: [("ACTIVE", 0)] * 9, RUNS: [("", 1)] * 9}
    done = cloud.run("tpu_vm/train.sh", "gs://b/r", plan=plan, MAX_CRASHES="2", **TPU)
    assert done.returncode == 1
    assert len(cloud.calls(RUNS)) == 3


def test_tpu_that_cannot_be_had_is_not_asked_for_for_ever(cloud):
    plan = {STATE: [("", 1)] * 9, "queued-resources create": [("no quota", 1)] * 9}
    assert cloud.run("tpu_vm/train.sh", "gs://b/r", plan=plan, **TPU).returncode == 1
    assert len(cloud.calls("queued-resources create")) == 1
