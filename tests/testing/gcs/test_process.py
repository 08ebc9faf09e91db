"""The server as a process of its own, and as a guest in somebody else's."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
import requests
from google.api_core import exceptions

from keras_preempt.testing import FakeGcs
from keras_preempt.testing.gcs.fake import main

SERVE = [sys.executable, "-W", "error", "-m", "keras_preempt.testing.gcs.fake"]


@contextmanager
def serving(*options):
    """A server process; gives it and its address."""
    with subprocess.Popen([*SERVE, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_server_process_serves_until_it_is_told_to_end():
    with serving("--bucket", "b1", "--bucket", "b2") as (process, endpoint):
        for name, status in (("b1", 200), ("b2", 200), ("bucket", 404)):
            assert requests.get(f"{endpoint}/storage/v1/b/{name}", timeout=10).status_code == status
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_a_server_process_puts_faults_in_the_way():
    faults = ("--fault-rate", "1", "--kinds", "503", "--seed", "1", "--bytes-per-second", "1e9")
    with serving(*faults) as (_, endpoint):
        assert requests.get(f"{endpoint}/storage/v1/b/bucket/o", timeout=10).status_code == 503


@pytest.mark.parametrize(
    "arguments",
    [
        ["--kinds", "flood"],
        ["--fault-rate", "2"],
        ["--bytes-per-second", "0"],
        ["--machine-bytes-per-second", "1", "2", "3"],
    ],
)
def test_nonsense_on_the_command_line_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    assert "Expected" in capsys.readouterr().err


def test_no_thread_and_no_open_port_is_left_whatever_clients_do():
    before = set(threading.enumerate())
    begin = time.monotonic()
    with FakeGcs() as gcs:
        port = int(gcs.endpoint.rpartition(":")[2])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        half = socket.create_connection(("127.0.0.1", port))
        half.sendall(
            b"POST /upload/storage/v1/b/bucket/o?uploadType=media&name=a HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc"
        )
        gone = socket.create_connection(("127.0.0.1", port))
        gone.sendall(b"PUT /nonsense HTTP/1.1\r\n")
        gone.close()
        gcs.client().bucket("bucket").blob("b").upload_from_string(b"")
    assert set(threading.enumerate()) - before == set()
    assert time.monotonic() - begin < 8
    for connection in (*idle, half):
        connection.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert set(gcs.objects("bucket")) == {"b"}


def test_it_can_be_started_again_with_what_it_holds():
    gcs = FakeGcs()
    for turn in range(2):
        with gcs:
            gcs.client().bucket("bucket").blob(f"n{turn}").upload_from_string(b"")
            with pytest.raises(RuntimeError, match="one `with` at a time"):
                gcs.__enter__()
    assert set(gcs.objects("bucket")) == {"n0", "n1"}
    with pytest.raises(RuntimeError, match="not"):
        gcs.client()


def test_a_request_that_is_none_is_answered_and_the_server_goes_on(gcs, bucket):
    for url in ("/", "/storage/v1/b/bucket/o/a/b/c", "/bucket/object", "/storage/v1/b/bucket/acl"):
        assert requests.get(gcs.endpoint + url, timeout=10).status_code in (404, 501)
    upload = gcs.endpoint + "/upload/storage/v1/b/bucket/o"
    for query, body, kind in (
        ("", b"", "text/plain"),
        ("?uploadType=multipart", b"junk", "multipart/related; boundary=x"),
        ("?uploadType=multipart", b"--x\r\n\r\n{\r\n--x\r\n\r\nc\r\n--x--", "multipart/related; boundary=x"),
        ("?uploadType=resumable&name=a", b"[1]", "application/json"),
        ("?uploadType=media", b"no name", "text/plain"),
        ("?uploadType=media&name=a&ifGenerationMatch=x", b"", "text/plain"),
    ):
        response = requests.post(upload + query, data=body, headers={"Content-Type": kind}, timeout=10)
        assert response.status_code == 400, query
        assert response.json()["error"]["code"] == 400
    odd = {"Transfer-Encoding": "gzip, chunked"}
    assert requests.post(upload, data=b"odd", headers=odd, timeout=10).status_code == 411
    bucket.blob("a").upload_from_string(b"")
    with pytest.raises(exceptions.BadRequest, match="object name"):
        bucket.blob("x" * 1025).upload_from_string(b"")
