"""What cannot work is said at the start, with what to do."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, RefreshError
from google.cloud import storage
from google.oauth2.credentials import Credentials

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage import budget, gcs, gcs_client
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.storage.gcs_place import GcsPlace
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.testing import FakeGcs


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_FIRST_DELAY", 0.01)
    monkeypatch.setattr(gcs, "_PROOF_SECONDS", 2.0)


def _refused(gcs: FakeGcs, tmp_path: Path, url: str = "gs://bucket/run", **options: Any) -> str:
    store = GcsStore(url, staging_dir=tmp_path, connect=options.get("connect", gcs.client))
    with pytest.raises(StoreUnavailable) as caught:
        store.prepare()
    store.close()
    assert list(tmp_path.iterdir()) == []
    return str(caught.value)


@pytest.mark.parametrize(("denied", "doing"), [("create", "create"), ("get", "read"), ("list", "list")])
def test_a_missing_permission_is_named_with_the_role_that_gives_it(
    tmp_path: Path, denied: str, doing: str
) -> None:
    with FakeGcs(deny=[denied]) as gcs:
        message = _refused(gcs, tmp_path)
        assert f"Expected to {doing} " in message
        assert (
            f"in gs://bucket/run. Received: 403 The caller does not have storage.objects.{denied}" in message
        )
        assert "{" not in message, "what the service told, and not how it is wrapped"
        assert "roles/storage.objectUser" in message
        assert gcs.objects("bucket") == {}


def test_a_missing_permission_to_delete_is_found_though_all_else_works(tmp_path: Path) -> None:
    with FakeGcs(deny=["delete"]) as gcs:
        message = _refused(gcs, tmp_path)
        assert "Expected to delete 'run/.tmp-probe-" in message
        assert "Received: 403" in message
        assert "roles/storage.objectUser" in message


def test_a_missing_bucket_is_named_with_how_to_make_it(tmp_path: Path) -> None:
    with FakeGcs(buckets=("other",)) as gcs:
        message = _refused(gcs, tmp_path)
    assert "Received: 404 The specified bucket does not exist. Check" in message
    assert "gcloud storage buckets create gs://bucket" in message


def test_refused_credentials_are_told_from_missing_ones(tmp_path: Path) -> None:
    with FakeGcs() as gcs:
        gcs.unauthenticated = True

        def wrong_credentials() -> Any:
            credentials = Credentials(token="wrong")  # type: ignore[no-untyped-call]
            options = {"api_endpoint": gcs.endpoint}
            return storage.Client(project=None, credentials=credentials, client_options=options)

        message = _refused(gcs, tmp_path, connect=wrong_credentials)
        assert "The credentials were not accepted" in message
        assert "gcloud auth application-default login" in message

        def no_credentials() -> Any:
            raise DefaultCredentialsError("Your default credentials were not found.")  # type: ignore[no-untyped-call]

        message = _refused(gcs, tmp_path, connect=no_credentials)
        assert "There are no Google Cloud credentials" in message
        assert "GOOGLE_APPLICATION_CREDENTIALS" in message


def test_expired_credentials_are_said_to_be_so(tmp_path: Path) -> None:
    class Expired(AnonymousCredentials):
        def before_request(self, *_: Any) -> None:
            raise RefreshError("Reauthentication is needed.")  # type: ignore[no-untyped-call]

    with FakeGcs() as gcs:

        def connect() -> Any:
            return storage.Client(
                project=None,
                credentials=Expired(),  # type: ignore[no-untyped-call]
                client_options={"api_endpoint": gcs.endpoint},
            )

        message = _refused(gcs, tmp_path, connect=connect)
    assert "Reauthentication is needed" in message
    assert "not valid any more" in message


def test_a_wrong_server_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused, FakeGcs() as gcs:
        unused.bind(("127.0.0.1", 0))  # nobody listens
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
        message = _refused(gcs, tmp_path, connect=gcs_client.connect)
    assert "refused" in message
    assert f"Check the network on the way to {endpoint}" in message


def test_the_server_of_a_region_that_does_not_exist_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = "http://storage.us-nowhere1.rep.invalid"  # names that end so never exist (RFC 2606)
    with FakeGcs() as gcs:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
        message = _refused(gcs, tmp_path, connect=gcs_client.connect)
    assert "Received: Failed to resolve 'storage.us-nowhere1.rep.invalid'" in message
    assert f"There is no such server: check its name, as {endpoint}, and the region in it" in message


def test_no_credentials_at_all_are_told_from_wrong_ones(tmp_path: Path) -> None:
    with FakeGcs() as gcs:
        gcs.unauthenticated = True
        message = _refused(gcs, tmp_path)  # the client of the fake is anonymous
    assert "There are no Google Cloud credentials" in message
    assert "gcloud auth application-default login" in message


def test_a_bucket_that_is_gone_in_mid_run_is_no_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeGcs(buckets=("other",)) as gcs:
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


@pytest.mark.parametrize(
    "url",
    ["gs://bucket/run", "gs://bucket/run/", "GS://bucket/run//"],
)
def test_the_same_place_has_the_same_key_however_it_is_spelled(url: str) -> None:
    assert open_store(url).key == "gs://bucket/run"
    assert open_store(url).url == url


def test_a_whole_bucket_is_a_place() -> None:
    assert [GcsPlace(url).key for url in ("gs://bucket", "gs://bucket/")] == ["gs://bucket"] * 2
    assert GcsPlace("gs://bucket").object_of("a/b") == "a/b"


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
