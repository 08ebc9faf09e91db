"""What holds for every source that asks a metadata server, however that server fails."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy
import pytest

from keras_preempt.notices import Notice
from keras_preempt.notices.aws import AwsSpot
from keras_preempt.notices.azure import AzureScheduledEvents
from keras_preempt.notices.gce import GceMaintenance, GcePreemption
from keras_preempt.notices.metadata_client import Address
from keras_preempt.notices.polling import Backoff
from keras_preempt.testing import METADATA_FAULTS, FakeMetadata
from tests.notices.conftest import threads
from tests.notices.ear import PATIENCE, POLL, Ear, quick, started, wait_for_more, wait_until
from tests.notices.test_gce import TERMINATE

Source = AwsSpot | AzureScheduledEvents | GceMaintenance | GcePreemption

#: By name: its class, what its questions contain, and how its notice is published.
KINDS = {
    "GCE maintenance": (GceMaintenance, "maintenance-event", lambda fake: fake.gce.maintenance(TERMINATE)),
    "GCE preemption": (GcePreemption, "preempted", lambda fake: fake.gce.preempt()),
    "AWS Spot": (AwsSpot, "/latest/", lambda fake: fake.aws.interrupt()),
    "Azure scheduled events": (AzureScheduledEvents, "/metadata/", lambda fake: fake.azure.schedule()),
}
ROUGH = sorted({*METADATA_FAULTS, "400", "401", "403", "404", "429", "500", "503"} - {"slow", "stall"})


class Kind:
    def __init__(self, name: str) -> None:
        self.name = name
        self.source, self.match, self.publish = KINDS[name]
        self.options = {"least_seconds" if name.startswith("GCE") else "poll_seconds": POLL}

    def make(self, ear: Ear, on_notice: Callable[[Notice], None] | None = None, **more: object) -> Source:
        options = {"backoff": quick(), **self.options, **more}
        if self.source in (AzureScheduledEvents, GceMaintenance):
            options["on_withdrawn"] = ear.withdraw
        return self.source(on_notice or ear.notice, **options)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(request.param)


@pytest.fixture
def source(kind: Kind, fake: FakeMetadata, ear: Ear) -> Iterator[Source]:
    with started(kind.make(ear)) as source:
        yield source


def settled(fake: FakeMetadata, kind: Kind) -> None:
    """Waits until it has asked a few times, or until an answer is held back."""
    fake.wait_for_requests(2, kind.match, PATIENCE)


def test_a_server_that_fails_for_a_while_changes_nothing_and_takes_no_notice_back(source, fake, kind, ear):
    settled(fake, kind)
    for fault in ROUGH:
        trouble(fake, kind, fault)
    assert ear.notices == ear.withdrawn == []
    kind.publish(fake)
    ear.wait()
    if kind.name != "GCE preemption":  # It has nothing more to ask.
        for fault in ("404", "503", "reset", "rubbish"):
            trouble(fake, kind, fault)
    assert ear.hears_nothing_new()
    assert ear.withdrawn == []
    assert all("/elsewhere" not in request.path for request in fake.requests)


@pytest.mark.parametrize("fault", ["stall", "slow"])
def test_a_server_that_hangs_or_trickles_at_first_is_waited_for_or_asked_again(kind, fake, ear, fault):
    bounded = fault == "slow" and "poll_seconds" in kind.options
    kind.publish(fake)
    fake.fail(fault, match=kind.match)
    with started(kind.make(ear, **({"answer_seconds": 0.5} if bounded else {}))):
        fake.wait_for_requests(1, kind.match, PATIENCE)
        if fault == "stall":
            assert ear.hears_nothing_new()
        fake.recover()
        ear.wait()


def test_a_server_that_goes_away_and_comes_back_is_found_again(kind, ear):
    with FakeMetadata() as fake:
        port = fake.port
        source = kind.make(ear, address=Address("127.0.0.1", port))
        source.start()
        settled(fake, kind)
    time.sleep(0.2)
    with FakeMetadata(port=port) as fake:
        kind.publish(fake)
        ear.wait()
        source.stop()


def test_trouble_and_its_end_are_logged_once_each(source, fake, kind, ear, caplog):
    caplog.set_level("INFO")
    settled(fake, kind)
    assert caplog.records == []
    for turn in (1, 2):
        fake.fail("503", match=kind.match)
        fake.drop_connections()
        wait_for_more(fake, kind.match, 4)
        fake.recover()
        kind.publish(fake)
        wait_until(lambda told=2 * turn - 1: any("answers again" in each for each in caplog.messages[told:]))
        messages = caplog.messages
        assert len(messages) == 2 * turn
        assert messages[-2].startswith(
            f"{kind.name}: the metadata server does not answer as it should: Expected "
        )
        assert messages[-1].startswith(f"{kind.name}: the metadata server answers again, after ")
        if kind.name == "GCE preemption":
            break  # It has heard all that it can hear.


def trouble(fake: FakeMetadata, kind: Kind, fault: str) -> None:
    """Two questions meet the fault, also if one is open that nobody would answer for a minute."""
    already = len(fake.requests)
    fake.fail(fault, match=kind.match)
    deadline = time.monotonic() + PATIENCE
    while sum(request.fault == fault for request in fake.requests[already:]) < 2:
        assert time.monotonic() < deadline, fault
        fake.drop_connections()
        time.sleep(0.02)
    fake.recover()


@pytest.mark.parametrize("state", ["asking", "stalled", "backing off", "connecting"])
def test_stop_ends_the_thread_at_once_whatever_it_waits_for(kind, fake, ear, state, blackhole):
    options: dict[str, object] = {}
    if state == "stalled":
        fake.fail("stall")
    elif state == "backing off":
        fake.fail("503")
        options["backoff"] = Backoff(60.0, 60.0, 60.0)
    elif state == "connecting":
        options["address"] = blackhole
    if "poll_seconds" in kind.options:
        options |= {"poll_seconds": 60.0, "answer_seconds": 60.0}
    with started(kind.make(ear, **options)) as source:
        if state == "connecting":
            time.sleep(0.2)
        else:
            fake.wait_for_requests(1, kind.match, PATIENCE)
            time.sleep(0.05)
        source.stop()  # It waits a second at most.
        assert threads(f"keras_preempt-{kind.name}") == set()


@pytest.fixture
def blackhole() -> Iterator[Address]:
    """Where nobody answers: a listener that accepts nothing, and whose queue is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        full = [socket.socket() for _ in range(3)]
        for one in full:
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        yield Address(*listener.getsockname())
        for one in full:
            one.close()


def test_stop_before_start_and_from_the_notice_itself_is_fine(kind, fake, ear):
    kind.make(ear).stop()

    def notice_and_stop(notice):
        source.stop()
        ear.notice(notice)

    source = kind.make(ear, notice_and_stop)
    with started(source):
        kind.publish(fake)
        ear.wait()


def test_nothing_is_heard_after_stop(source, fake, kind, ear):
    settled(fake, kind)
    source.stop()
    kind.publish(fake)
    assert ear.hears_nothing_new()


def test_no_descriptor_is_left(kind, fake, ear):
    def count() -> int:
        of_all = os.listdir("/proc/self/fd")
        return len(of_all) - sum("fake-metadata-connection" in one.name for one in threading.enumerate())

    def once() -> None:
        asked = sum(kind.match in request.text for request in fake.requests)
        with started(kind.make(ear)):
            fake.wait_for_requests(asked + 2, kind.match, PATIENCE)

    once()
    before = count()
    for _ in range(5):
        once()
    # A thread of the fake ends a moment after its descriptor, so that either count can be one too low.
    wait_until(lambda: count() <= before + 2)


def test_the_random_state_of_training_is_left_alone(source, fake, kind, ear):
    before = random.getstate(), numpy.random.get_state()[1].tolist()
    fake.fail("503")
    fake.drop_connections()
    wait_for_more(fake, kind.match, 4)
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == before


def test_no_proxy_is_asked(kind, fake, ear, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0.3)
        where = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, where)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        kind.publish(fake)
        with started(kind.make(ear)):
            ear.wait()
        with pytest.raises(TimeoutError):
            proxy.accept()
