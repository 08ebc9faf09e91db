"""How fast the fake lets bytes move; times are compared with those of the same run alone."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
import requests
from google.api_core.client_info import ClientInfo

from keras_preempt.testing import FakeGcs
from keras_preempt.testing.buckets.pace import BURST_SECONDS
from tests.testing.conftest import client_at

CONTENT = bytes(600_000)
CONNECTIONS = 3


def _move(bucket: Any, way: str, name: str) -> None:
    if way == "up":
        bucket.blob(name).upload_from_string(CONTENT)
    else:
        assert bucket.blob(name).download_as_bytes() == CONTENT


def _seconds(buckets: list[Any], way: str) -> float:
    """How long it takes to move `CONTENT` over each of several clients at once."""
    names = [f"n{number}" for number in range(len(buckets))]
    begun = time.monotonic()
    with ThreadPoolExecutor(len(buckets)) as pool:
        list(pool.map(_move, buckets, [way] * len(buckets), names))
    return time.monotonic() - begun


@contextmanager
def _machines(gcs: FakeGcs, names: str) -> Iterator[list[Any]]:
    """The bucket as clients on machines see it, which are told apart by their user agents."""
    agents = [ClientInfo(user_agent=name) for name in names]  # type: ignore[no-untyped-call]
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(client_at(gcs.endpoint, client_info=it))) for it in agents]
        yield [client.bucket("bucket") for client in clients]


def _connection(gcs: FakeGcs) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(gcs.endpoint.rpartition(":")[2])), timeout=30)


def _fill(gcs: FakeGcs) -> None:
    for number in range(CONNECTIONS):
        gcs.put("bucket", f"n{number}", CONTENT)


@pytest.mark.parametrize("way", ["up", "down"])
def test_the_rate_limit_is_one_of_each_connection(way: str) -> None:
    rate = 600_000
    with FakeGcs(bytes_per_second=rate) as gcs:
        _fill(gcs)
        took = _seconds([gcs.client().bucket("bucket") for _ in range(CONNECTIONS)], way)
    alone = len(CONTENT) / rate - BURST_SECONDS
    assert 0.95 * alone < took < 0.9 * alone * CONNECTIONS


@pytest.mark.parametrize("way", ["up", "down"])
def test_each_direction_has_its_own_rate(way: str) -> None:
    slow, fast = 600_000, 60_000_000
    with FakeGcs(bytes_per_second=(slow, fast) if way == "up" else (fast, slow)) as gcs:
        _fill(gcs)
        bucket = gcs.client().bucket("bucket")
        other = _seconds([bucket], "down" if way == "up" else "up")
        limited = _seconds([bucket], way)
    assert limited > 0.95 * (len(CONTENT) / slow - BURST_SECONDS)
    assert other < limited / 2


def test_the_connections_of_one_machine_share_its_rate_and_all_machines_that_of_the_bucket() -> None:
    rate = 1_200_000
    with FakeGcs(machine_bytes_per_second=rate) as gcs, _machines(gcs, "aaabcd") as buckets:
        shared, apart = _seconds(buckets[:3], "up"), _seconds(buckets[3:], "up")
    assert shared > 0.95 * (CONNECTIONS * len(CONTENT) / rate - BURST_SECONDS)
    assert apart < 0.75 * shared
    with FakeGcs(bucket_bytes_per_second=rate) as gcs, _machines(gcs, "abc") as buckets:
        of_bucket = _seconds(buckets, "up")
    assert of_bucket > 0.95 * (CONNECTIONS * len(CONTENT) / rate - BURST_SECONDS)


def test_a_client_feels_the_limit_while_it_sends_and_not_at_the_end_alone() -> None:
    """A system that took megabytes off it at once would leave it to a long silence."""
    with FakeGcs(bytes_per_second=1_000_000) as gcs, _connection(gcs) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
        head = b"POST /upload/storage/v1/b/bucket/o?uploadType=media&name=a HTTP/1.1\r\n"
        connection.sendall(head + b"Content-Length: 1500000\r\n\r\n")
        begun = time.monotonic()
        connection.sendall(bytes(1_500_000))
        sending = time.monotonic() - begun
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        waiting = time.monotonic() - begun - sending
    assert sending > waiting


def test_a_body_in_chunks_is_taken_whole_or_not_at_all() -> None:
    """TensorFlow's own gs:// file system sends contents so."""
    with FakeGcs() as gcs:
        upload = gcs.endpoint + "/upload/storage/v1/b/bucket/o?uploadType=media&name="
        pieces = [b"first ", b"second ", bytes(3_000_000)]
        assert requests.post(upload + "whole", data=iter(pieces), timeout=10).status_code == 200
        assert gcs.content("bucket", "whole") == b"".join(pieces)
        for tail in (b"5\r\nhel", b"5\r\nhello\r\n", b"x\r\n"):
            with _connection(gcs) as connection:
                connection.sendall(
                    b"POST /upload/storage/v1/b/bucket/o?uploadType=media&name=cut HTTP/1.1\r\n"
                    b"Transfer-Encoding: chunked\r\n\r\n" + tail
                )
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(100) == b""
        assert list(gcs.objects("bucket")) == ["whole"]


@pytest.mark.parametrize("rate", [1e12, float("inf")])
def test_a_rate_that_stands_for_no_limit_fails_no_connection(rate: float) -> None:
    """A client would retry a refused connection for minutes."""
    with FakeGcs(bytes_per_second=rate, machine_bytes_per_second=1e9) as gcs:
        gcs.client().bucket("bucket").blob("a").upload_from_string(b"content", retry=None)
    assert [request.status for request in gcs.requests] == [200]
