"""FakeS3 and FakeAzure as processes of their own, their rates, and their ends."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import requests
from obstore.exceptions import BaseError

from keras_preempt.testing.azure.fake import main as azure_main
from keras_preempt.testing.buckets.pace import BURST_SECONDS
from keras_preempt.testing.s3.fake import main as s3_main
from tests.testing.buckets.conftest import FAKES, store_of

SERVICES = list(FAKES)
CONTENT = bytes(600_000)
CONNECTIONS = 3


@contextmanager
def serving(service: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", f"keras_preempt.testing.{service}.fake", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize("service", SERVICES)
def test_a_server_process_serves_until_it_is_told_to_end(service):
    with serving(service, "--bucket", "b", "--fault-rate", "1", "--kinds", "503") as (process, endpoint):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+(/fakeaccount)?", endpoint)
        assert requests.get(f"{endpoint}/b/a", timeout=10).status_code == 503
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.parametrize("main", [s3_main, azure_main])
@pytest.mark.parametrize(
    "arguments", [["--kinds", "flood"], ["--fault-rate", "2"], ["--bytes-per-second", "0"]]
)
def test_nonsense_on_the_command_line_is_refused(main, arguments, capsys):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    assert "Expected" in capsys.readouterr().err


def seconds(fake, way):
    """How long several connections take together, each of which moves `CONTENT`."""
    stores = [store_of(fake) for _ in range(CONNECTIONS)]

    def move(number):
        if way == "up":
            stores[number].put(f"n{number}", CONTENT)
        else:
            assert bytes(stores[number].get(f"n{number}").bytes()) == CONTENT

    begun = time.monotonic()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(move, range(CONNECTIONS)))
    return time.monotonic() - begun


@pytest.mark.parametrize("service", SERVICES)
def test_rates_are_of_each_connection_or_of_all_together(service):
    rate = 1_200_000
    alone = len(CONTENT) / rate - BURST_SECONDS
    with FAKES[service](bytes_per_second=rate) as fake:
        for way in ("up", "down"):
            assert 0.95 * alone < seconds(fake, way) < 0.9 * alone * CONNECTIONS
    together = CONNECTIONS * len(CONTENT) / rate - BURST_SECONDS
    for limit in ("machine_bytes_per_second", "bucket_bytes_per_second"):
        with FAKES[service](**{limit: rate}) as fake:
            assert seconds(fake, "up") > 0.95 * together


@pytest.mark.parametrize("service", SERVICES)
def test_no_thread_and_no_open_port_is_left_whatever_clients_do(service):
    before = set(threading.enumerate())
    begin = time.monotonic()
    with FAKES[service]() as fake:
        port = int(re.findall(r":(\d+)", fake.endpoint)[0])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        half = socket.create_connection(("127.0.0.1", port))
        half.sendall(b"PUT /bucket/a HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc")
        store_of(fake).put("b", b"")
    assert {each for each in set(threading.enumerate()) - before if each.name.startswith("fake-")} == set()
    assert time.monotonic() - begin < 8
    for connection in (*idle, half):
        connection.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert set(fake.objects("bucket")) == {"b"}


@pytest.mark.parametrize("service", SERVICES)
def test_it_can_be_started_again_with_what_it_holds(service):
    fake = FAKES[service]()
    for turn in range(2):
        with fake:
            store_of(fake).put(f"n{turn}", b"")
    assert set(fake.objects("bucket")) == {"n0", "n1"}
    with pytest.raises(RuntimeError, match=type(fake).__name__):
        fake.client()


def test_a_request_that_is_none_is_answered_and_the_server_goes_on(fake, store):
    for method, path in (("GET", "/"), ("POST", "/bucket/a"), ("PATCH", "/bucket/a"), ("GET", "/bucket?acl")):
        assert requests.request(method, fake.endpoint + path, timeout=10).status_code in (400, 401, 403, 501)
    odd = {"Transfer-Encoding": "gzip, chunked"}
    assert requests.put(f"{fake.endpoint}/bucket/a", data=b"odd", headers=odd, timeout=10).status_code == 411
    store.put("a", b"")
    with pytest.raises(BaseError):
        store.copy("a", "b")  # Not imitated.
    assert fake.requests[-1].status == 501
