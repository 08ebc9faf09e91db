"""What cannot work is said at the start, with what to do."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, RefreshError
from google.cloud import storage
from google.oauth2.credentials import Credentials

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage import bucket, budget, gcs_client
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.gcs_client import GcsPlace
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.testing import FakeGcs


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_FIRST_DELAY", 0.01)
    monkeypatch.setattr(bucket, "_PROOF_SECONDS", 2.0)


def _refused(connect: Callable[[], Any], tmp_path: Path, *says: str) -> str:
    store = GcsStore("gs://bucket/run", staging_dir=tmp_path, connect=connect)
    with pytest.raises(StoreUnavailable) as caught:
        store.prepare()
    store.close()
    assert list(tmp_path.iterdir()) == []
    for words in says:
        assert words in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("denied", "doing"), [("create", "create"), ("get", "read"), ("list", "list"), ("delete", "delete")]
)
def test_a_missing_permission_is_named_with_the_role_that_gives_it(
    tmp_path: Path, denied: str, doing: str
) -> None:
    with FakeGcs(deny=[denied]) as gcs:
        told = f"Received: 403 The caller does not have storage.objects.{denied}"
        message = _refused(gcs.client, tmp_path, f"Expected to {doing} ", told, "roles/storage.objectUser")
        assert "{" not in message, "what the service told, and not how it is wrapped"
        assert denied == "delete" or gcs.objects("bucket") == {}


def test_a_missing_bucket_is_named_with_how_to_make_it_and_in_mid_run_is_no_missing_file(
    tmp_path: Path,
) -> None:
    with FakeGcs(buckets=("other",)) as gcs:
        told = "Received: 404 The specified bucket does not exist. Check"
        _refused(gcs.client, tmp_path, told, "gcloud storage buckets create gs://bucket")
        store = GcsStore("gs://bucket/run", staging_dir=tmp_path, connect=gcs.client)
        for call in (
            lambda: store.stat("a"),
            lambda: store.list(""),
            lambda: store.children(""),
            lambda: store.create("a", b""),
        ):
            with pytest.raises(StoreUnavailable, match="bucket does not exist"):
                call()
        store.close()


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (
            "retention",
            ["Expected to delete", "403 Object is subject to", "Use a bucket without a retention policy"],
        ),
        ("requester pays", ["400 Bucket is a requester pays bucket", "--no-requester-pays"]),
        (
            "organization",
            ["Expected to create", "412 Request violates constraint", "policy of the organization"],
        ),
    ],
)
def test_what_a_policy_refuses_is_told_with_what_to_do(tmp_path: Path, policy: str, says: list[str]) -> None:
    with FakeGcs() as gcs:
        gcs.policies = (policy,)
        message = _refused(gcs.client, tmp_path, *says)
        assert "roles/" not in message
        assert "not known" not in message


@pytest.mark.parametrize("refused", ["permission", "retention"])
def test_starts_that_may_not_delete_leave_one_object_and_no_more(tmp_path: Path, refused: str) -> None:
    with FakeGcs() as gcs:
        gcs.policies, gcs.deny = ((), {"delete"}) if refused == "permission" else (("retention",), set())
        for _ in range(3):
            _refused(gcs.client, tmp_path, "Expected to delete")
            assert len(gcs.objects("bucket")) == 1
        gcs.policies, gcs.deny = (), set()
        GcsStore("gs://bucket/run", staging_dir=tmp_path, connect=gcs.client).prepare()
        assert gcs.objects("bucket") == {}


class Expired(AnonymousCredentials):
    def before_request(self, *_: Any) -> None:
        raise RefreshError("Reauthentication is needed.")  # type: ignore[no-untyped-call]


NO_CREDENTIALS = DefaultCredentialsError("Your default credentials were not found.")  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: Credentials(token="wrong"),
            [
                "401 Invalid Credentials, and then:",
                "were not accepted",
                "gcloud auth application-default login",
            ],
        ),
        (AnonymousCredentials, ["There are no Google Cloud credentials", "application-default login"]),
        (
            mock.Mock(side_effect=NO_CREDENTIALS),
            ["There are no Google Cloud credentials", "GOOGLE_APPLICATION_CREDENTIALS"],
        ),
        (Expired, ["Reauthentication is needed", "have expired"]),
    ],
)
def test_credentials_that_are_refused_missing_or_expired_are_told_from_each_other(
    tmp_path: Path, make: Callable[[], Any], says: list[str]
) -> None:
    with FakeGcs() as gcs:
        gcs.unauthenticated = True
        options = {"api_endpoint": gcs.endpoint}
        _refused(
            lambda: storage.Client(project=None, credentials=make(), client_options=options), tmp_path, *says
        )


NO_SERVER = "http://storage.us-nowhere1.rep.invalid"  # names that end so never exist (RFC 2606)


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("", ["refused", "Check the network on the way to {}"]),
        (
            NO_SERVER,
            [
                "Received: Failed to resolve 'storage.us-nowhere1.rep.invalid'",
                "There is no such server: check its name, as {}, and the region in it",
            ],
        ),
    ],
)
def test_a_wrong_server_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str, says: list[str]
) -> None:
    monkeypatch.setattr(bucket, "_PROOF_SECONDS", 1.0)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nobody listens
        endpoint = endpoint or f"http://127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
        _refused(gcs_client.connect, tmp_path, *(words.format(endpoint) for words in says))


def test_an_emulator_needs_neither_credentials_nor_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    with FakeGcs() as gcs:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.endpoint)
        store = open_store("gs://bucket/run", staging_dir=tmp_path)
        store.prepare()
        store.create("a", b"data")
        assert gcs.content("bucket", "run/a") == b"data"
        staging = store._stage()  # type: ignore[attr-defined]
        store.close()
        assert not staging.path.exists()


def test_a_staging_directory_that_does_not_work_is_found_at_the_start(tmp_path: Path) -> None:
    with FakeGcs() as gcs:
        store = GcsStore("gs://bucket/run", staging_dir=tmp_path / "missing", connect=gcs.client)
        with pytest.raises(StoreUnavailable, match="staging_dir"):
            store.prepare()
        assert gcs.objects("bucket") == {}


def test_the_same_place_has_the_same_key_however_it_is_spelled() -> None:
    for url in ("gs://bucket/run", "gs://bucket/run/", "GS://bucket/run//"):
        assert (open_store(url).key, open_store(url).url) == ("gs://bucket/run", url)
    for url in ("gs://bucket", "gs://bucket/"):
        assert open_store(url).key == "gs://bucket"
        assert GcsPlace(url).object_of("a/b") == "a/b"


@pytest.mark.parametrize(
    "url",
    [
        "gs://",
        "gs:///run",
        "gs://Bucket/run",
        "gs://b/run",
        "gs://bucket/a//b",
        "gs://bucket/../b",
        "gs://bucket/./b",
        "gs://bucket/a\\b",
        "gs://bucket/.tmp-x",
        "gs://user@bucket/a",
    ],
)
def test_a_place_that_no_bucket_has_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"Expected a (place|prefix).*Received: .*gs://"):
        open_store(url)
