from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_preempt.notices.metadata_client import (
    LONGEST_BODY,
    Address,
    Answer,
    MetadataClient,
    MetadataError,
    parse_address,
)
from keras_preempt.notices.stopping import Stopped, Stopping


@pytest.fixture
def stopping() -> Iterator[Stopping]:
    stopping = Stopping()
    yield stopping
    stopping.close()


@contextmanager
def server(speak: Callable[[socket.socket], None]) -> Iterator[Address]:
    """A server that reads one question and then speaks to one client."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(10)
            connection.recv(65536)
            with suppress(OSError):  # The client has had enough.
                speak(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address(*listener.getsockname())
        thread.join(10)
        assert not thread.is_alive()


def ask(address: Address, stopping: Stopping, timeout: float = 10.0) -> Answer:
    return MetadataClient(address).ask("/a?b=c", stopping, headers={"X": "y"}, timeout=timeout)


@contextmanager
def fails(match: str, longest: float = 5.0) -> Iterator[None]:
    begin = time.monotonic()
    with pytest.raises(MetadataError, match=match) as caught:
        yield
    assert str(caught.value).startswith("Expected ")
    assert str(caught.value).endswith(".")
    assert time.monotonic() - begin < longest


def sends(*pieces: bytes) -> Callable[[socket.socket], None]:
    def speak(connection: socket.socket) -> None:
        for piece in pieces:
            connection.sendall(piece)

    return speak


def test_an_answer_comes_with_status_headers_and_body(stopping):
    said = b"HTTP/1.1 404 No\r\nETag: a\r\nContent-Length: 3\r\n\r\n h "
    with server(sends(*(bytes([byte]) for byte in said))) as address:
        answer = ask(address, stopping)
    assert (answer.status, answer.headers["etag"], answer.body, answer.text()) == (404, "a", b" h ", "h")


def test_an_answer_of_the_greatest_length_is_read_and_a_longer_one_is_not(stopping):
    for length, fine in ((LONGEST_BODY, True), (LONGEST_BODY + 1, False)):
        with server(sends(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * length)) as address:
            if fine:
                assert len(ask(address, stopping).body) == length
            else:
                with fails("at most 65536 bytes"):
                    ask(address, stopping)


def test_an_answer_without_end_is_left(stopping):
    def speak(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            connection.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")

    with server(speak) as address, fails("at most 65536 bytes"):
        ask(address, stopping)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"hello\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 " + b"x" * 100_000,
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000 + b"\r\n",
        b"\x00\xff\xfe",
    ],
    ids=lambda said: repr(said[:45]),
)
def test_what_is_no_http_is_an_error(stopping, said):
    with server(sends(said)) as address, fails("Expected an answer from GET http://127.0.0.1"):
        ask(address, stopping)


@given(said=st.binary(max_size=60), head=st.sampled_from([b"", b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\n"]))
def test_whatever_bytes_come_they_are_an_answer_or_an_error(said, head):
    stopping = Stopping()
    try:
        with server(sends(head + said)) as address:
            answer = ask(address, stopping)
            for read in (answer.check_status, answer.text, answer.json):
                with suppress(MetadataError):
                    read()
    except MetadataError:
        pass
    finally:
        stopping.close()


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nA: ", b"HTTP/1.1 200 OK\r\n\r\n", b""])
def test_a_trickle_does_not_extend_the_time(stopping, head):
    def speak(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(b"x")
            time.sleep(0.02)

    with server(speak) as address, fails("none in time"):
        ask(address, stopping, timeout=0.3)


def test_silence_ends_in_time_and_with_the_word_to_stop(stopping):
    def silence(connection: socket.socket) -> None:
        connection.recv(1)

    with server(silence) as address, fails("none in time"):
        ask(address, stopping, timeout=0.2)
    with server(silence) as address:
        timer = threading.Timer(0.1, stopping.set)
        timer.start()
        with pytest.raises(Stopped):
            ask(address, stopping, timeout=30)
        timer.join()


def test_nobody_there_is_an_error(stopping):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname())
    with fails("cannot connect"):
        ask(address, stopping)
    for host in ("a..b", "x" * 300):
        with fails("Expected an answer"):
            ask(Address(host), stopping)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"1", b"{", b"\xff", b"[" * 60000, b'{"a":' * 9000, b"9" * 9000]
)
def test_what_is_no_json_object_is_an_error(body):
    with fails("a JSON object"):
        Answer("q", 200, {}, body).json()


def test_text_that_is_none_and_a_status_that_is_not_200_are_errors():
    with fails("Expected text from q"):
        Answer("q", 200, {}, b"\xff").text()
    for status in (204, 301, 404, 503):
        with fails(f"status {status}"):
            Answer("q", status, {}, b"").check_status()


def test_sources_of_metadata_servers_need_no_tensorflow():
    program = (
        "import sys\n"
        "from keras_preempt.notices import aws, azure, gce, polled, signals\n"
        "import keras_preempt.testing.metadata.fake\n"
        "print([name for name in ('tensorflow', 'keras', 'numpy', 'requests') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "address", "written"),
    [
        ("metadata.google.internal", Address("metadata.google.internal", 80), "metadata.google.internal"),
        ("http://127.0.0.1:1338/", Address("127.0.0.1", 1338), "127.0.0.1:1338"),
        ("HTTP://HOST", Address("host"), "host"),
        ("[::1]:81", Address("::1", 81), "[::1]:81"),
    ],
)
def test_addresses_are_read_and_written(text, address, written):
    assert parse_address(text, "NAME") == address
    assert str(address) == written


@pytest.mark.parametrize(
    "text",
    [
        "https://host",
        "host/path",
        "http://host/latest",
        "user:password@host",
        "host:port",
        "host:70000",
        ":80",
        "http://",
        "host name",
        "host?query",
        "[::1",
        " ",
    ],
)
def test_anything_else_is_refused_with_the_variables_name(text):
    with pytest.raises(ValueError, match="Expected NAME to be host, host:port or http"):
        parse_address(text, "NAME")
