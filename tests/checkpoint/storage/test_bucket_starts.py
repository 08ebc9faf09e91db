"""What cannot work in a bucket of S3 or Azure is said at the start, with what to do; and credentials by all ways."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage import bucket, budget
from keras_preempt.checkpoint.storage.bucket import BucketStore
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.testing import FakeAzure, FakeS3
from keras_preempt.testing.azure.blobs import Blobs
from keras_preempt.testing.buckets.fake import FakeBucket
from keras_preempt.testing.s3.objects import S3Objects
from tests.checkpoint.storage.buckets import fake_bucket, new_store, scheme_of


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(budget, "_FIRST_DELAY", 0.01)
    monkeypatch.setattr(bucket, "_PROOF_SECONDS", 2.0)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_")):
            monkeypatch.delenv(name)


def _refused(store: BucketStore, *says: str) -> str:
    with pytest.raises(StoreUnavailable) as caught:
        store.prepare()
    store.close()
    for words in says:
        assert words in str(caught.value)
    assert "<" not in str(caught.value), "what the service told, and not how it is wrapped"
    return str(caught.value)


ROLES = {
    "s3": "s3:PutObject, s3:GetObject and s3:DeleteObject on arn:aws:s3:::bucket/*",
    "az": "Storage Blob Data",
}


@pytest.mark.parametrize(
    ("denied", "doing"), [("create", "create"), ("get", "read"), ("list", "list"), ("delete", "delete")]
)
@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_a_missing_permission_is_named_with_what_gives_it(
    scheme: str, denied: str, doing: str, tmp_path: Path
) -> None:
    with fake_bucket(scheme, deny=[denied]) as fake:
        _refused(new_store(fake, tmp_path), f"Expected to {doing} ", "Received: 403 ", ROLES[scheme])
        assert denied == "delete" or fake.objects("bucket") == {}


@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_a_missing_bucket_is_named_with_how_to_make_it_and_is_no_missing_file(
    scheme: str, tmp_path: Path
) -> None:
    make = {"s3": "aws s3 mb s3://missing", "az": "az storage container create --name missing"}[scheme]
    with fake_bucket(scheme) as fake:
        store = new_store(fake, tmp_path, "missing/run")
        _refused(store, "Received: 404 ", make)
        calls: list[Callable[[], object]] = [
            lambda: store.stat("a"),
            lambda: store.list(""),
            lambda: store.children(""),
            lambda: store.create("a", b""),
        ]
        for call in calls:
            with pytest.raises(StoreUnavailable, match="does not exist"):
                call()
        store.close()


def test_another_region_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with fake_bucket("s3", region="eu-west-1") as fake:
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        _refused(new_store(fake, tmp_path), "expecting 'eu-west-1'", "another region: set AWS_REGION")


# -- Services that do not keep the promises -----------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_a_service_that_ignores_conditions_is_refused(
    scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kind: Any = {"s3": S3Objects, "az": Blobs}[scheme]
    real = kind.put

    def put(objects: Any, call: Any) -> Any:
        call.headers = {k: v for k, v in call.headers.items() if k.lower() != "if-none-match"}
        return real(objects, call)

    monkeypatch.setattr(kind, "put", put)
    with fake_bucket(scheme) as fake:
        _refused(new_store(fake, tmp_path), "server that enforces preconditions", "has overwritten an object")
        assert fake.objects("bucket") == {}


@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_a_service_that_drops_metadata_is_refused(
    scheme: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kind: Any = {"s3": S3Objects, "az": Blobs}[scheme]
    real = kind.put

    def put(objects: Any, call: Any) -> Any:
        call.headers = {k: v for k, v in call.headers.items() if "-meta-" not in k.lower()}
        return real(objects, call)

    monkeypatch.setattr(kind, "put", put)
    with fake_bucket(scheme) as fake:
        _refused(new_store(fake, tmp_path), "keeps the metadata")


# -- Credentials --------------------------------------------------------------------------------------------


def test_keys_that_are_not_known_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with fake_bucket("s3") as fake:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        _refused(new_store(fake, tmp_path), "were not accepted", "AWS_PROFILE and install boto3")
    with fake_bucket("az") as fake:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
        _refused(new_store(fake, tmp_path), "were not accepted", "AZURE_STORAGE_SAS_TOKEN")


def test_without_credentials_the_ways_to_give_some_are_named_soon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nobody listens
        nowhere = f"http://127.0.0.1:{unused.getsockname()[1]}"
        for fake, variable in ((FakeS3(), "AWS_METADATA_ENDPOINT"), (FakeAzure(), "AZURE_MSI_ENDPOINT")):
            with fake:
                for name, value in fake.environment().items():
                    if "KEY" not in name and "CONNECTION" not in name:
                        monkeypatch.setenv(name, value)
                monkeypatch.setenv(variable, nowhere)
                begun = time.monotonic()
                _refused(new_store(fake, tmp_path), "There are no credentials")
                assert time.monotonic() - begun < 5


def test_an_account_without_a_name_is_asked_for(tmp_path: Path) -> None:
    store = open_store("az://bucket/run", staging_dir=tmp_path)
    with pytest.raises(StoreUnavailable, match=r"AZURE_STORAGE_ACCOUNT_NAME.*abfss://"):
        store.list("")
    store.close()


def _profile(fake: FakeS3, home: Path, name: str) -> None:
    ((key, secret),) = fake.credentials.items()
    (home / ".aws").mkdir(parents=True, exist_ok=True)
    (home / ".aws/credentials").write_text(
        f"[{name}]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
    )


@pytest.mark.parametrize("name", ["default", "other"])
def test_a_profile_is_read_by_boto3(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with fake_bucket("s3") as fake:
        for each in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(each)
        _profile(fake, tmp_path / "home", name)
        if name != "default":
            monkeypatch.setenv("AWS_PROFILE", name)
        store = new_store(fake, tmp_path)
        store.prepare()
        store.close()
        monkeypatch.setenv("AWS_PROFILE", "missing")
        _refused(new_store(fake, tmp_path), "profile (missing)", "AWS_PROFILE")
        monkeypatch.setitem(sys.modules, "boto3", None)
        _refused(new_store(fake, tmp_path), "AWS_PROFILE=missing, and no boto3 to read it", "install boto3")


def test_keys_that_expire_in_the_middle_of_a_run_are_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with fake_bucket("s3") as fake:
        monkeypatch.setenv("AWS_SESSION_TOKEN", "first")
        store = new_store(fake, tmp_path)
        store.create("a", b"data")
        fake.expired_tokens.add("first")
        monkeypatch.setenv("AWS_SESSION_TOKEN", "second")
        calls: list[Callable[[], object]] = [
            lambda: store.create("b", b"data"),
            lambda: store.stat("a"),
            lambda: store.list(""),
            lambda: store.delete("a"),
        ]
        for number, call in enumerate(calls):
            call()
            fake.expired_tokens.add(os.environ["AWS_SESSION_TOKEN"])
            monkeypatch.setenv("AWS_SESSION_TOKEN", f"token {number}")
        fake.expired_tokens.add(os.environ["AWS_SESSION_TOKEN"])
        store.deadline = time.monotonic() + 1
        with pytest.raises(StoreUnavailable, match="have expired, and were not renewed in time"):
            store.create("c", b"")
        store.close()


def test_an_environment_that_makes_no_sense_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with fake_bucket("s3") as fake:
        for name, value, says in (
            ("AWS_CA_BUNDLE", str(tmp_path / "missing"), "Correct AWS_CA_BUNDLE"),
            ("AWS_CONDITIONAL_PUT", "nonsense", "Correct the variables AWS_"),
        ):
            with monkeypatch.context() as patch:
                patch.setenv(name, value)
                store = new_store(fake, tmp_path)
                for call in (store.prepare, lambda store=store: store.stat("a")):
                    with pytest.raises(StoreUnavailable, match=says):
                        call()
                store.close()


def test_a_connection_string_and_the_names_of_other_tools_lead_to_an_account(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with FakeAzure() as fake:
        found = fake.environment()
        ways = [
            {"AZURE_STORAGE_CONNECTION_STRING": found["AZURE_STORAGE_CONNECTION_STRING"]},
            {
                "AZURE_STORAGE_ACCOUNT": fake.account,
                "AZURE_STORAGE_KEY": fake.account_key,
                "AZURE_STORAGE_ENDPOINT": found["AZURE_STORAGE_ENDPOINT"],
            },
        ]
        for variables in ways:
            with monkeypatch.context() as patch:
                for name, value in variables.items():
                    patch.setenv(name, value)
                for url in ("az://bucket/run", f"abfss://bucket@{fake.account}.dfs.core.windows.net/run/"):
                    store = open_store(url, staging_dir=tmp_path)
                    assert store.key == "az://bucket/run"
                    store.prepare()
                    store.close()


# -- Buckets that keep what is removed ----------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_a_bucket_with_versions_is_used_like_any_other(scheme: str, tmp_path: Path) -> None:
    with fake_bucket(scheme, versioned=True) as fake:
        store = new_store(fake, tmp_path)
        store.prepare()
        for _ in range(2):
            store.create("a", b"data")
            store.delete("a")
        assert store.list("") == []
        store.close()


@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_starts_that_may_not_delete_leave_one_object_and_no_more(scheme: str, tmp_path: Path) -> None:
    with fake_bucket(scheme) as fake:
        fake.deny = {"delete"}
        for _ in range(3):
            _refused(new_store(fake, tmp_path), "Expected to delete")
            assert len(fake.objects("bucket")) == 1
        fake.deny = set()
        store = new_store(fake, tmp_path)
        store.prepare()
        assert fake.objects("bucket") == {}
        store.close()


def test_a_policy_that_forbids_deletions_is_named(tmp_path: Path) -> None:
    with fake_bucket("az") as fake:
        fake.policies = ("retention",)
        _refused(new_store(fake, tmp_path), "Expected to delete", "immutability policy")
    with fake_bucket(
        "s3", versioned=True
    ) as fake:  # There, a deletion is a marker, which every policy permits.
        fake.policies = ("retention",)
        store = new_store(fake, tmp_path)
        store.prepare()
        store.close()


# -- Places -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///run",
        "s3://Bucket/run",
        "s3://b/run",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://bucket/.tmp-x",
        "s3://user@bucket/a",
        "az://",
        "az://Bucket/run",
        "az://a--b/run",
        "az://bucket@account/run",
        "abfss://bucket/run",
        "abfss://bucket@account.example.org/run",
        "abfss://bucket@account.dfs.core.windows.net/a/../b",
    ],
)
def test_a_place_that_no_bucket_has_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"Expected a (place|prefix).*Received: .*(s3|az|abfss)://"):
        open_store(url)


def test_the_same_place_has_the_same_key_however_it_is_spelled() -> None:
    for url in ("s3://bucket/run", "s3://bucket/run/", "S3://bucket/run//"):
        assert (open_store(url).key, open_store(url).url) == ("s3://bucket/run", url)
    long = "abfss://bucket@account.dfs.core.windows.net"
    assert open_store(f"{long}/run").key == f"{long}/run"
    assert open_store(f"{long}/run").beside("doctor") == f"{long}/run.doctor"
    assert open_store(long).beside("doctor") == f"{long}/doctor"
    assert open_store("az://bucket/run").beside("doctor") == "az://bucket/run.doctor"


@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_without_the_library_the_extra_is_named(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if "obstore" in name or name.endswith((".s3", ".azure"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "obstore", None)
    extra = {"s3": "s3", "az": "azure"}[scheme]
    with pytest.raises(ValueError, match=rf"obstore.*pip install 'keras-preempt\[{extra}\]'"):
        open_store(f"{scheme}://bucket/run")


# -- Forks --------------------------------------------------------------------------------------------------


def _use(store: BucketStore, answers: Any) -> None:
    try:
        store.list("")
    except StoreUnavailable as error:
        answers.put(str(error))


def test_a_forked_child_gets_an_error_and_does_not_disturb_its_parent(
    fake: FakeBucket, remote: BucketStore
) -> None:
    remote.create("a", b"data")
    context = multiprocessing.get_context("fork")
    answers: Any = context.Queue()
    child = context.Process(target=_use, args=(remote, answers))
    child.start()
    assert "forked" in answers.get(timeout=30)
    child.join(30)
    assert child.exitcode == 0
    assert remote.read("a", limit=9) == b"data"
    assert scheme_of(fake) in remote.url
