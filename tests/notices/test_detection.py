"""Where a process runs is found, and a wrong, slow or silent answer never holds training up."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.notices import cloud
from keras_preempt.notices.azure import ASSET_TAG
from keras_preempt.notices.cloud import Accelerator
from keras_preempt.notices.detection import Detection
from keras_preempt.notices.metadata_client import parse_address
from keras_preempt.notices.platform import Platform
from keras_preempt.notices.termination import Termination, TerminationConfig
from keras_preempt.testing import FakeMetadata
from tests.docs.shown import assert_shown
from tests.notices.conftest import threads
from tests.notices.raw_server import Behaviour, RawServer, http

GOOGLE = http(200, "4711", Metadata_Flavor="Google")
TOKEN = http(200, "AQAE", X_Aws_Ec2_Metadata_Token_Ttl_Seconds="60")
AZURE_COMPUTE = http(200, '{"azEnvironment": "AzurePublicCloud", "name": "vm"}')
PORTAL = http(200, "<html>Please accept our terms</html>", Content_Type="text/html")

NOWHERE = {"GCE_METADATA_HOST": "127.0.0.1:9"}
"""No server: for tests of what is found without one, which must not depend on the machine that they run on."""


def machine(root: Path, devices: tuple[str, ...] = (), **firmware: str) -> Path:
    """The files by which a machine is known."""
    files = {f"sys/class/dmi/id/{name}": f"{text}\n" for name, text in firmware.items()}
    files |= {f"dev/{device}": "" for device in devices}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def detect(accelerator: Accelerator | None = None, *, variables: dict[str, str], root: Path) -> Platform:
    return Detection(accelerator, variables=variables, root=root).start().result()


def ask(variables: dict[str, str], root: Path) -> Platform:
    """What is found with all the time in the world: for servers that do answer, on a machine that is busy."""
    return Detection(variables=variables, root=root, limit=30).result(timeout=30)


# -- Without asking anybody ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("firmware", "name"),
    [
        ({"product_name": "Google Compute Engine", "sys_vendor": "Google"}, "gce-cpu"),
        ({"sys_vendor": "Amazon EC2"}, "aws"),
        ({"sys_vendor": "Xen", "bios_vendor": "Amazon EC2"}, "aws"),
        ({"sys_vendor": "Xen", "bios_version": "4.11.amazon"}, "aws"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": ASSET_TAG}, "azure"),
        # Only like one of a cloud: a desk's Hyper-V, a Chromebook.
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "Default string"}, None),
        ({"sys_vendor": "Google", "product_name": "Lindar"}, None),
        ({"sys_vendor": "Xen"}, None),
        ({}, None),
    ],
)
def test_the_firmware_names_the_cloud_and_no_server_is_asked(
    firmware: dict[str, Any], name: str | None, tmp_path: Path
) -> None:
    detection = Detection(variables={} if name else NOWHERE, root=machine(tmp_path, **firmware)).start()
    if name is not None:
        assert threads("keras_preempt-platform") == set()
    platform = detection.result()
    assert platform.name == (name or "generic")
    assert ("the firmware says" in platform.describe()) is (name is not None)


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        (["SM_HOSTS"], "sagemaker"),
        (["TRAINING_JOB_NAME"], "sagemaker"),
        (["CLOUD_ML_PROJECT_ID"], "vertex"),
        (["AIP_MODEL_DIR"], "vertex"),
        (["SLURM_JOB_ID"], "slurm"),
        (["LSB_JOBID"], "lsf"),
        (["KUBERNETES_SERVICE_HOST"], "kubernetes"),
        (["SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"], "slurm"),  # The one inside another one counts.
    ],
)
def test_a_scheduler_is_known_by_its_variables(variables: list[str], name: str, tmp_path: Path) -> None:
    platform = detect(variables={**dict.fromkeys(variables, "1"), **NOWHERE}, root=tmp_path)
    assert platform.name == name
    assert f"{variables[0]} is set" in platform.describe()


def test_a_container_of_kubernetes_is_known_without_variables(tmp_path: Path) -> None:
    (tmp_path / "var/run/secrets/kubernetes.io/serviceaccount").mkdir(parents=True)
    assert detect(variables=NOWHERE, root=tmp_path).name == "kubernetes"


def test_a_scheduler_on_a_cloud_is_found_as_both(tmp_path: Path) -> None:
    root = machine(tmp_path, ("nvidia0", "nvidiactl"), product_name="Google Compute Engine")
    platform = detect(variables={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, root=root)
    assert platform.name == "kubernetes+gce-gpu"
    assert platform.sources == ("signals", "gce", "coordination key")
    assert "/dev/nvidia0 is there" in platform.describe()
    assert_shown("platform line", Termination(TerminationConfig(), platform).describe())


@pytest.mark.parametrize(
    ("devices", "variables", "found"),
    [
        (("nvidia0",), {}, "gpu"),
        (("nvidiactl", "nvidia-uvm"), {}, "none"),
        (("accel0",), {}, "tpu"),
        (("accel/accel0",), {}, "none"),  # Of somebody else than Google.
        ((), {"TPU_WORKER_ID": "0"}, "tpu"),
        ((), {}, "none"),
    ],
)
def test_the_accelerator_is_known_by_its_device_file(
    devices: tuple[str, ...], variables: dict[str, str], found: Accelerator, tmp_path: Path
) -> None:
    root = machine(tmp_path, devices, sys_vendor="Amazon EC2")
    assert detect(variables=variables, root=root).accelerator == found


def test_the_caller_knows_better_what_it_computes_on(tmp_path: Path) -> None:
    root = machine(tmp_path, ("nvidia0",), product_name="Google Compute Engine")
    platform = detect("none", variables={}, root=root)
    assert platform.name == "gce-cpu"
    assert "nvidia0" not in platform.describe()


# -- Asking a metadata server ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "reply", "name"),
    [
        ("GCE_METADATA_HOST", GOOGLE, "gce-cpu"),
        ("GCE_METADATA_IP", GOOGLE, "gce-cpu"),
        ("GCE_METADATA_HOST", http(503, "busy", Metadata_Flavor="Google"), "gce-cpu"),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", TOKEN, "aws"),
        ("KERAS_PREEMPT_AZURE_METADATA_HOST", AZURE_COMPUTE, "azure"),
    ],
)
@pytest.mark.parametrize("firmware", ["", "Amazon EC2"])
def test_a_metadata_server_is_known_by_its_answer_and_believed_before_the_firmware(
    variable: str, reply: bytes, name: str, firmware: str, tmp_path: Path
) -> None:
    with RawServer("answer", reply) as server:
        platform = ask({variable: f"http://{server.address}"}, machine(tmp_path, sys_vendor=firmware))
    assert platform.name == name
    assert server.address in platform.describe()
    assert len(server.requests) == 1


@pytest.mark.parametrize(("cloud", "name"), [("gce", "gce-cpu"), ("aws", "aws"), ("azure", "azure")])
def test_all_clouds_are_told_apart_at_one_address(cloud: str, name: str, tmp_path: Path) -> None:
    with FakeMetadata([cloud]) as fake:
        platform = ask(fake.environment, tmp_path)
    assert platform.name == name
    assert all(request.method in ("GET", "PUT") for request in fake.requests)


def test_a_metadata_server_that_stalls_is_not_waited_for(tmp_path: Path) -> None:
    with FakeMetadata(["gce"]) as fake:
        fake.fail("stall")
        detection = Detection(variables=fake.environment, root=tmp_path, limit=0.3)
        assert detection.result().name == "generic"
        fake.recover()
        assert ask(fake.environment, tmp_path).name == "gce-cpu"


def test_where_nothing_is_known_all_clouds_are_asked_within_one_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered_by(server: RawServer, limit: float) -> str:
        monkeypatch.setattr(cloud, "LINK_LOCAL", parse_address(server.address, "test"))
        return Detection(variables={}, root=tmp_path, limit=limit).result(timeout=limit).name

    not_found = http(404, "not here")
    with RawServer("answer", not_found, not_found, AZURE_COMPUTE) as server:
        assert answered_by(server, 30) == "azure"
    assert [line.split()[0] for line in server.requests] == ["GET", "PUT", "GET"]
    with RawServer("hang") as server:
        assert answered_by(server, 0.3) == "generic"
    assert len([line for line in server.requests if line]) == 1  # For the others no time was left.


# -- Wrong answers ---------------------------------------------------------------------------------------

BAD: list[tuple[Behaviour, bytes]] = [
    ("answer", PORTAL),
    ("answer", http(200, "4711")),
    ("answer", http(302, "", Location="http://login.example/")),
    ("answer", http(200, "{}", Metadata_Flavor="Other")),
    ("answer", b"SSH-2.0-OpenSSH_9.6\r\n"),
    ("answer", b"\x00\xff" * 50),
    ("answer", b""),
    ("answer", http(200, "[" * 5000)),
    ("answer", http(200, "x" * 200_000)),
    ("reset", b""),
    ("close", b""),
    ("hang", b""),
    ("trickle", b"HTTP/1.1 200 OK\r\nX: y\r\n"),
]


@pytest.mark.parametrize(("behaviour", "reply"), BAD, ids=[f"{how}-{reply[:16]!r}" for how, reply in BAD])
@pytest.mark.parametrize("firmware", ["", "Amazon EC2"])
def test_a_wrong_answer_changes_nothing_and_holds_nothing_up(
    behaviour: Behaviour, reply: bytes, firmware: str, tmp_path: Path
) -> None:
    root = machine(tmp_path, sys_vendor=firmware)
    with RawServer(behaviour, reply) as server:
        variables = dict.fromkeys(
            ("GCE_METADATA_HOST", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "KERAS_PREEMPT_AZURE_METADATA_HOST"),
            server.address,
        )
        detection = Detection(variables=variables, root=root, limit=0.3).start()
        began = time.monotonic()
        platform = detection.result()
        waited = time.monotonic() - began
    assert platform.name == ("aws" if firmware else "generic")
    assert "no metadata server answered" in platform.describe()
    assert waited < 10  # A server that hangs or trickles does so for half a minute, or many.


def test_who_needs_the_result_earlier_or_not_at_all_need_not_wait(tmp_path: Path) -> None:
    with RawServer("hang") as server:
        options: dict[str, Any] = {"variables": {"GCE_METADATA_HOST": server.address}, "root": tmp_path}
        detection = Detection(**options, limit=60).start()
        assert detection.result(timeout=0).name == "generic"
        assert threads("keras_preempt-platform") == set()
        unwanted = Detection(**options, limit=600)
        unwanted.stop()
        unwanted.start().stop()
        unwanted.stop()


def test_a_start_after_one_that_was_answered_asks_nobody(tmp_path: Path) -> None:
    with RawServer("hang") as server:
        variables = {
            "GCE_METADATA_HOST": server.address,
            "KERAS_PREEMPT_CLOUD": '["aws", "as its server says"]',
        }
        found = detect(variables=variables, root=tmp_path)
        assert (found.name, server.requests) == ("aws", [])
    assert "as its server says" in found.describe()


def test_a_start_after_one_without_an_answer_does_not_wait_for_one(tmp_path: Path) -> None:
    with RawServer("hang") as server:
        variables = {
            "GCE_METADATA_HOST": server.address,
            "KERAS_PREEMPT_CLOUD": '[null, "no metadata server answered"]',
        }
        began = time.monotonic()
        found = Detection(variables=variables, root=tmp_path, limit=30).result(timeout=30)
        assert time.monotonic() - began < 15
    assert found.name == "generic"


@pytest.mark.parametrize("told", ["", "[", "{}", '["mars", "x"]', '["aws"]', "[null, 1]"])
def test_an_earlier_answer_that_is_none_is_asked_for_again(told: str, tmp_path: Path) -> None:
    with RawServer("answer", GOOGLE) as server:
        variables = {"GCE_METADATA_HOST": server.address, "KERAS_PREEMPT_CLOUD": told}
        assert ask(variables, tmp_path).name == "gce-cpu"


def test_the_first_result_stands(tmp_path: Path) -> None:
    with RawServer("answer", GOOGLE) as server:
        detection = Detection(variables={"GCE_METADATA_HOST": server.address}, root=tmp_path, limit=30)
        first = detection.result(timeout=30)
        assert first.name == "gce-cpu"
        assert detection.start().result() is first
    assert len(server.requests) == 1


# -- Said by the user ------------------------------------------------------------------------------------


def test_a_named_platform_is_taken_and_nobody_is_asked(tmp_path: Path) -> None:
    root = machine(tmp_path, ("nvidia0",), sys_vendor="Amazon EC2")
    with RawServer("answer", GOOGLE) as server:
        for name, found in (("none", "generic"), ("slurm", "slurm"), ("gce", "gce-gpu")):
            variables = {"KERAS_PREEMPT_PLATFORM": name, "GCE_METADATA_HOST": server.address}
            assert detect(variables=variables, root=root).name == found
    assert server.requests == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KERAS_PREEMPT_PLATFORM", "gcp"),
        ("GCE_METADATA_HOST", "https://metadata.google.internal"),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254/latest"),
        ("KERAS_PREEMPT_AZURE_METADATA_HOST", "http://:80"),
    ],
)
def test_a_variable_that_holds_nonsense_is_refused_at_once(variable: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"Expected {variable} to be"):
        Detection(variables={variable: value}, root=tmp_path)
