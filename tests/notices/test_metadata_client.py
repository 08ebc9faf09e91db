from __future__ import annotations

import threading
import time
from collections.abc import Iterator
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
    Stopped,
    Stopping,
    parse_address,
)
from tests.notices.raw_server import RawServer


@pytest.fixture
def stopping() -> Stopping:
    return Stopping()


def ask(server: RawServer, stopping: Stopping, timeout: float = 10.0) -> Answer:
    address = parse_address(server.address, "test")
    return MetadataClient(address, stopping).ask("/a?b=c", headers={"X": "y"}, timeout=timeout)


@contextmanager
def fails(match: str) -> Iterator[None]:
    begin = time.monotonic()
    with pytest.raises(MetadataError, match=match) as caught:
        yield
    assert str(caught.value).startswith("Expected ")
    assert str(caught.value).endswith(".")
    assert time.monotonic() - begin < 5


def test_an_answer_comes_with_status_headers_and_body(stopping):
    said = b"HTTP/1.1 404 No\r\nETag: a\r\nContent-Length: 3\r\n\r\n h "
    with RawServer("trickle", said) as server:
        answer = ask(server, stopping)
    assert (answer.status, answer.headers["etag"], answer.body, answer.text()) == (404, "a", b" h ", "h")


def test_an_answer_of_the_greatest_length_is_read_and_a_longer_or_endless_one_is_not(stopping):
    longest = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * LONGEST_BODY
    with RawServer("answer", longest, longest + b"x") as server:
        assert len(ask(server, stopping).body) == LONGEST_BODY
        with fails("at most 65536 bytes"):
            ask(server, stopping)
    said = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with RawServer("flood", said, b"400\r\n" + b"x" * 1024 + b"\r\n") as server, fails("at most 65536"):
        ask(server, stopping)


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
    with RawServer("answer", said) as server, fails("Expected an answer from GET http://127.0.0.1"):
        ask(server, stopping)


@given(said=st.binary(max_size=60), head=st.sampled_from([b"", b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\n"]))
def test_whatever_bytes_come_they_are_an_answer_or_an_error(said, head):
    stopping = Stopping()
    try:
        with RawServer("answer", head + said) as server:
            answer = ask(server, stopping)
            for read in (answer.check_status, answer.text, answer.json):
                with suppress(MetadataError):
                    read()
    except MetadataError:
        pass


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nA: ", b"HTTP/1.1 200 OK\r\n\r\n", b"x"])
def test_a_trickle_does_not_extend_the_time(stopping, head):
    with RawServer("trickle", head + b"x" * 1000) as server, fails("none in time"):
        ask(server, stopping, timeout=0.3)


def test_silence_ends_in_time_and_with_the_word_to_stop(stopping):
    with RawServer("hang") as server:
        with fails("none in time"):
            ask(server, stopping, timeout=0.2)
        timer = threading.Timer(0.1, stopping.set)
        timer.start()
        with pytest.raises(Stopped):
            ask(server, stopping, timeout=30)
        timer.join()


def test_nobody_there_is_an_error(stopping):
    with RawServer("hang") as server:
        pass
    with fails("cannot connect"):
        ask(server, stopping)
    for host in ("a..b", "x" * 300):
        with fails("Expected an answer"):
            MetadataClient(Address(host), stopping).ask("/", headers={}, timeout=10.0)


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
