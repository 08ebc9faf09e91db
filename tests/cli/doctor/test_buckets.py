"""What the doctor finds out about a bucket of each cloud. No test here needs TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from keras_preempt.testing import FakeAzure, FakeGcs, FakeS3
from keras_preempt.testing.s3 import objects
from tests.cli.doctor.doctored import ENV, Report, doctor

FAKES: dict[str, Any] = {"gs": FakeGcs, "s3": FakeS3, "az": FakeAzure}
NOBODY = "http://127.0.0.1:1"
AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")

#: The cure where a permission is missing; whole, though the command in the first has an ellipsis.
GIVE = {
    "gs": "\nGive this account roles/storage.objectUser",
    "s3": "\nGive this account s3:PutObject, s3:GetObject and s3:DeleteObject on arn:aws:s3:::bucket/*",
    "az": "\nGive this identity the role 'Storage Blob Data Contributor' on the container bucket",
}


def examined(scheme: str, env: dict[str, str], bucket: str = "bucket") -> Report:
    return doctor(f"{scheme}://{bucket}/run", "--state-size", "1MB", env=env)


@pytest.mark.parametrize(
    ("denied", "does"), [("create", "create"), ("get", "read"), ("list", "list"), ("delete", "delete")]
)
@pytest.mark.parametrize("scheme", FAKES)
def test_a_permission_that_a_bucket_does_not_give_is_named_alone(scheme: str, denied: str, does: str) -> None:
    with FAKES[scheme](deny=[denied]) as fake:
        report = examined(scheme, fake.environment())
        assert GIVE[scheme] in report.cure(f"permission to {does}")
        assert report.problems == {f"permission to {does}"}
        fake.deny = set()  # The cure: the role has all of them.
        examined(scheme, fake.environment()).assert_passes()
        left = [name for name in fake.objects("bucket") if denied != "delete"]
        assert left == []


@pytest.mark.parametrize(
    ("scheme", "create"),
    [
        ("gs", "`gcloud storage buckets create gs://other`"),
        ("s3", "`aws s3 mb s3://other`"),
        ("az", "`az storage container create --name other`"),
    ],
)
def test_a_bucket_that_is_not_there_is_found_once_with_the_command_that_makes_it(
    scheme: str, create: str
) -> None:
    with FAKES[scheme]() as fake:
        report = examined(scheme, fake.environment(), "other")
    assert create in report.cure("bucket")
    assert report.problems == {"bucket"}


@pytest.mark.parametrize(
    ("scheme", "without", "variables", "cure"),
    [
        ("s3", AWS_KEYS, {"AWS_METADATA_ENDPOINT": NOBODY}, "Attach a role to the machine"),
        ("s3", AWS_KEYS, {"AWS_PROFILE": "none"}, "set AWS_PROFILE and install boto3"),
        ("s3", AWS_KEYS[1:], {}, "Correct the variables AWS_*"),
        ("s3", (), {"AWS_ACCESS_KEY_ID": "unknown"}, "The credentials were not accepted"),
        ("s3", (), {"AWS_REGION": "eu-north-1"}, "set AWS_REGION to it"),
        ("az", ("AZURE_STORAGE_ACCOUNT_NAME",), {}, "Set AZURE_STORAGE_ACCOUNT_NAME"),
        (
            *("az", ("AZURE_STORAGE_ACCOUNT_KEY",), {"AZURE_MSI_ENDPOINT": NOBODY}),
            "There are no credentials, or the server that gives them failed",
        ),
        ("az", (), {"AZURE_STORAGE_ACCOUNT_KEY": "b3RoZXI="}, "The credentials were not accepted"),
    ],
)
def test_credentials_and_regions_that_lead_to_no_bucket_are_found_once(
    scheme: str,
    without: tuple[str, ...],
    variables: dict[str, str],
    cure: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/none")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/none")
    without += ("AZURE_STORAGE_CONNECTION_STRING",)  # It has all of the others.
    with FAKES[scheme]() as fake:
        whole = fake.environment()
        env = {name: value for name, value in whole.items() if name not in without}
        report = examined(scheme, {**env, **variables})
        assert cure in report.cure("bucket")
        assert report.problems == {"bucket"}
        examined(scheme, whole).assert_passes()


def test_a_service_that_overwrites_what_is_to_be_created_once_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeS3() as s3:
        report = examined("s3", s3.environment())
        assert report.findings["conditional writes"]["level"] == "ok"
        # As S3 did until 2024, and old services that speak its language.
        monkeypatch.setattr(objects, "_none_check", lambda found: None)
        report = examined("s3", s3.environment())
        assert "supports its conditional writes (If-None-Match)" in report.cure("conditional writes")
        assert report.problems == {"conditional writes"}
        assert s3.objects("bucket") == {}, "nothing stays"


def test_a_bucket_that_forbids_removal_is_found_where_checkpoints_could_never_be_removed() -> None:
    with FakeAzure() as azure:
        azure.policies = ("retention",)
        assert "immutability policy" in examined("az", azure.environment()).cure("permission to delete")
    with FakeS3(versioned=True) as s3:
        s3.policies = ("retention",)  # Of versions; their names can be used again.
        examined("s3", s3.environment()).assert_passes()


def test_a_bucket_whose_requester_pays_is_told_from_a_missing_permission() -> None:
    with FakeS3() as s3:
        s3.policies = ("requester pays",)
        assert "set AWS_REQUEST_PAYER=requester" in examined("s3", s3.environment()).cure("bucket")


@pytest.mark.parametrize(("scheme", "extra"), [("s3", "s3"), ("az", "azure"), ("abfss", "azure")])
def test_a_missing_library_is_named_with_the_extra_that_brings_it(scheme: str, extra: str) -> None:
    code = (
        "import sys; sys.modules['obstore'] = None; "
        f"from keras_preempt.cli.main import main; sys.exit(main(['doctor', '{scheme}://bucket/run']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=ENV)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert f"pip install 'keras-preempt[{extra}]'" in said
