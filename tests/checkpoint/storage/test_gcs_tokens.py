"""Credentials whose server of tokens fails for a while."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.auth import _exponential_backoff
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
from google.cloud import storage
from google.oauth2.credentials import Credentials

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage import budget, gcs_errors
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.testing import FakeGcs


class TokenServer(HTTPServer):
    """Gives tokens, after as many answers of another status as it is told.

    Attributes:
        failing: Those answers, each a status and a body.
        asked: How often it was asked.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.failing: list[tuple[int, dict[str, Any]]] = []
        self.asked = 0


class _Answer(BaseHTTPRequestHandler):
    server: TokenServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        token = {"access_token": "token", "expires_in": 3600, "token_type": "Bearer"}
        status, body = self.server.failing.pop(0) if self.server.failing else (200, token)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenServer]:
    monkeypatch.setattr(budget, "_FIRST_DELAY", 0.01)
    monkeypatch.setattr(_exponential_backoff, "time", SimpleNamespace(sleep=lambda seconds: None))
    server = TokenServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def store_of(gcs: FakeGcs, tokens: TokenServer, folder: Path) -> GcsStore:
    uri = f"http://127.0.0.1:{tokens.server_address[1]}/token"
    credentials = Credentials(
        token=None, refresh_token="refresh", token_uri=uri, client_id="id", client_secret="secret"
    )  # type: ignore[no-untyped-call]
    options = {"api_endpoint": gcs.endpoint}
    return GcsStore(
        "gs://bucket/run",
        staging_dir=folder,
        connect=lambda: storage.Client(project=None, credentials=credentials, client_options=options),
    )


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_a_save_outlasts_a_token_server_that_fails_for_a_while(
    status: int, tokens: TokenServer, tmp_path: Path
) -> None:
    with FakeGcs() as gcs:
        store = store_of(gcs, tokens, tmp_path)
        tokens.failing = [(status, {"error": "internal_failure"})] * 12
        store.create("a", b"x")
        assert store.read("a", limit=9) == b"x"
        assert tokens.asked == 13
        store.close()


def test_a_token_server_that_stays_down_is_named_for_what_it_is(tokens: TokenServer, tmp_path: Path) -> None:
    with FakeGcs() as gcs:
        store = store_of(gcs, tokens, tmp_path)
        tokens.failing = [(503, {"error": "internal_failure"})] * 10_000
        store.deadline = time.monotonic() + 1.0
        with pytest.raises(StoreUnavailable, match="server that gives the credentials their tokens failed"):
            store.create("a", b"x")
        store.close()


def test_credentials_that_are_refused_are_final_at_once(tokens: TokenServer, tmp_path: Path) -> None:
    with FakeGcs() as gcs:
        store = store_of(gcs, tokens, tmp_path)
        tokens.failing = [(400, {"error": "invalid_grant", "error_description": "Bad Request"})] * 10_000
        with pytest.raises(StoreUnavailable, match="credentials were not accepted"):
            store.create("a", b"x")
        assert tokens.asked == 1
        store.close()


class _Metadata:
    """An answer of a metadata server."""

    def __init__(self, status: int) -> None:
        self.status = status


def _refreshed(error: TransportError) -> RefreshError:
    try:
        try:
            raise error
        except TransportError as inner:
            raise RefreshError(inner) from inner  # As credentials of a Compute Engine machine do.
    except RefreshError as outer:
        return outer


@pytest.mark.parametrize(
    ("error", "comes"),
    [
        (TransportError("no route to host"), True),
        (_refreshed(TransportError("no route to host")), True),
        (_refreshed(TransportError("Status: 503", _Metadata(503))), True),
        (_refreshed(TransportError("Status: 404", _Metadata(404))), False),
        (RefreshError("Reauthentication is needed."), False),
        (RefreshError("slow", retryable=True), True),
    ],
)
def test_what_passes_is_told_from_what_does_not(error: GoogleAuthError, comes: bool) -> None:
    assert gcs_errors.token_may_come(error) is comes
    assert gcs_errors.is_passing(error) is comes
    assert not gcs_errors.may_have_happened(error)
