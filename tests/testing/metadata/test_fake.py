"""FakeMetadata as somebody else's client sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
import requests

from keras_preempt.testing import FakeMetadata

GOOGLE = {"Metadata-Flavor": "Google"}
MAINTENANCE = "computeMetadata/v1/instance/maintenance-event"
EVENTS = "metadata/scheduledevents?api-version=2020-07-01"


@pytest.fixture(autouse=True)
def no_connection_is_left_to_other_tests() -> None:
    """Instead of the one of this folder, which collects garbage after each test: `ask` leaves no connection."""


@pytest.fixture
def fake() -> Iterator[FakeMetadata]:
    with FakeMetadata() as fake:
        yield fake
    assert [one.name for one in threading.enumerate() if one.name.startswith("fake-metadata")] == []


def ask(fake: FakeMetadata, path: str, method: str = "GET", **headers: str) -> requests.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with requests.Session() as session:
        session.trust_env = False
        where = f"http://127.0.0.1:{fake.port}/{path}"
        return session.request(method, where, headers=named, timeout=10, allow_redirects=False)


def gce(fake: FakeMetadata, path: str) -> requests.Response:
    return ask(fake, f"computeMetadata/v1/{path}", **GOOGLE)


def token(fake: FakeMetadata, seconds: str = "60") -> str:
    return ask(fake, "latest/api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds=seconds).text


def events(fake: FakeMetadata) -> Any:
    return ask(fake, EVENTS, Metadata="true").json()


def test_google_answers_only_who_says_so_and_says_who_it_is(fake):
    assert ask(fake, MAINTENANCE).status_code == 403
    assert ask(fake, MAINTENANCE, X_Forwarded_For="1.2.3.4", **GOOGLE).status_code == 403
    for path in ("", "instance/maintenance-event", "instance/none"):
        assert gce(fake, path).headers["Metadata-Flavor"] == "Google"


def test_google_has_folders_keys_and_trees(fake):
    assert gce(fake, "").text == "instance/\nproject/\n"
    assert gce(fake, "instance/machine-type").text.endswith("/machineTypes/n1-standard-8")
    assert gce(fake, "instance/attributes/").text == "cluster-name\n"
    assert gce(fake, "instance/attributes/?recursive=true").json() == {"cluster-name": "fake-cluster"}
    assert gce(fake, "instance/attributes").status_code == 301
    assert gce(fake, "instance/none").status_code == 404
    fake.gce.set("instance/attributes/accelerator-type", "v3-8")
    assert gce(fake, "instance/attributes/accelerator-type").text == "v3-8"
    fake.gce.set("instance/attributes/accelerator-type", None)
    assert gce(fake, "instance/attributes/accelerator-type").status_code == 404


def test_google_holds_an_answer_back_until_the_value_is_another_one(fake):
    first = gce(fake, "instance/maintenance-event")
    path = f"instance/maintenance-event?wait_for_change=true&timeout_sec=9&last_etag={first.headers['ETag']}"
    timer = threading.Timer(0.2, fake.gce.maintenance, ["MIGRATE_ON_HOST_MAINTENANCE"])
    begin = time.monotonic()
    timer.start()
    answer = gce(fake, path)
    timer.join()
    assert 0.15 < time.monotonic() - begin < 5
    assert answer.text == "MIGRATE_ON_HOST_MAINTENANCE"
    assert answer.headers["ETag"] != first.headers["ETag"]
    begin = time.monotonic()
    assert gce(fake, path).text == "MIGRATE_ON_HOST_MAINTENANCE"  # With the old etag: no reason to wait.
    assert time.monotonic() - begin < 5


def test_google_answers_when_the_time_is_up_or_something_in_the_folder_is_news(fake):
    etag = gce(fake, "instance/preempted").headers["ETag"]
    fake.gce.maintenance("MIGRATE_ON_HOST_MAINTENANCE")
    begin = time.monotonic()
    answer = gce(fake, f"instance/preempted?wait_for_change=true&timeout_sec=1&last_etag={etag}")
    assert time.monotonic() - begin >= 0.9
    assert (answer.text, answer.headers["ETag"]) == ("FALSE", etag)
    etag = gce(fake, "instance/?recursive=true").headers["ETag"]
    fake.gce.preempt()
    answer = gce(fake, f"instance/?recursive=true&wait_for_change=true&timeout_sec=9&last_etag={etag}")
    assert answer.json()["preempted"] == "TRUE"


def test_amazon_wants_a_token_that_it_gave_for_a_time_and_that_has_not_expired(fake):
    path = "latest/meta-data/instance-id"
    assert ask(fake, path).status_code == 401
    assert ask(fake, path, X_aws_ec2_metadata_token="mine").status_code == 401
    mine = token(fake)
    assert ask(fake, path, X_aws_ec2_metadata_token=mine).text == "i-0123456789abcdef0"
    fake.aws.expire_tokens()
    assert ask(fake, path, X_aws_ec2_metadata_token=mine).status_code == 401
    short = token(fake, "1")
    time.sleep(1.05)
    assert ask(fake, path, X_aws_ec2_metadata_token=short).status_code == 401
    for seconds in ("0", "21601", "x", ""):
        header = {"X_aws_ec2_metadata_token_ttl_seconds": seconds}
        assert ask(fake, "latest/api/token", "PUT", **header).status_code == 400


def test_amazon_announces_interruptions_and_recommendations(fake):
    def read(path: str) -> requests.Response:
        return ask(fake, f"latest/{path}", X_aws_ec2_metadata_token=token(fake))

    assert read("meta-data/spot/instance-action").status_code == 404
    assert read("meta-data/events/recommendations/rebalance").status_code == 404
    fake.aws.interrupt("stop", at=1505722920.0)
    fake.aws.rebalance(at=1603758120.0)
    assert read("meta-data/spot/instance-action").json() == {"action": "stop", "time": "2017-09-18T08:22:00Z"}
    assert read("meta-data/events/recommendations/rebalance").json() == {"noticeTime": "2020-10-27T00:22:00Z"}
    assert read("dynamic/instance-identity/document").json()["instanceType"] == "p3.2xlarge"
    assert "spot/" in read("meta-data/").text.split("\n")
    fake.aws.clear()
    assert read("meta-data/spot/instance-action").status_code == 404


def test_azure_wants_its_header_and_a_version_and_says_who_the_machine_is(fake):
    assert ask(fake, EVENTS).status_code == 400
    assert ask(fake, "metadata/scheduledevents", Metadata="true").status_code == 400

    def read(path: str) -> requests.Response:
        return ask(fake, f"metadata/instance/{path}?api-version=2021-02-01&format=text", Metadata="true")

    assert read("none").status_code == 404
    compute = read("compute").json()
    assert (compute["name"], compute["azEnvironment"]) == (fake.azure.name, "AzurePublicCloud")
    assert read("compute/name").text == fake.azure.name


def test_azure_counts_the_changes_of_its_events_and_promises_half_a_minute(fake):
    empty = events(fake)
    assert empty["Events"] == []
    assert events(fake) == empty
    identity = fake.azure.schedule("Reboot", not_before=1474309787.0)
    (event,) = events(fake)["Events"]
    assert (event["EventId"], event["EventType"], event["EventStatus"]) == (identity, "Reboot", "Scheduled")
    assert event["Resources"] == [fake.azure.name]
    assert event["NotBefore"] == "Mon, 19 Sep 2016 18:29:47 GMT"
    seen = [empty["DocumentIncarnation"], events(fake)["DocumentIncarnation"]]
    changes = (fake.azure.move, (1474309788.0,)), (fake.azure.begin, ()), (fake.azure.cancel, ())
    for change, more in changes:
        change(identity, *more)
        seen.append(events(fake)["DocumentIncarnation"])
    assert seen == sorted(set(seen))
    assert events(fake)["Events"] == []
    for gone in (fake.azure.begin, fake.azure.cancel):
        with pytest.raises(KeyError):
            gone(identity)
    fake.azure.schedule("Preempt")
    lead = parsedate_to_datetime(events(fake)["Events"][0]["NotBefore"]).timestamp() - time.time()
    assert 20 < lead <= 30


def test_a_cloud_that_it_is_not_asked_to_be_is_not_there():
    with FakeMetadata(["azure"]) as fake:
        assert gce(fake, "").status_code == 404
        assert ask(fake, "").status_code == 404
        assert ask(fake, "latest/api/token", "PUT").status_code == 404
        assert events(fake)["Events"] == []
    with FakeMetadata(["gce"]) as fake:
        assert ask(fake, "latest/api/token", "PUT").status_code == 404
        assert ask(fake, "metadata/instance?api-version=2021-02-01", Metadata="true").status_code == 404
        assert gce(fake, "instance/id").status_code == 200
    with pytest.raises(ValueError, match="Expected clouds out of gce, aws, azure"):
        FakeMetadata(["ibm"])


def test_googles_own_library_finds_it_by_its_environment(fake):
    program = (
        "import json, requests\n"
        "from google.auth.compute_engine import _metadata\n"
        "from google.auth.transport.requests import Request\n"
        "ask = Request()\n"
        "print(json.dumps([_metadata.ping(ask), _metadata.get_project_id(ask), "
        "_metadata.get(ask, 'instance/attributes/', recursive=True)]))\n"
    )
    how = {"env": {**os.environ, **fake.environment}, "capture_output": True, "timeout": 60}
    done = subprocess.run([sys.executable, "-c", program], text=True, **how)
    assert json.loads(done.stdout) == [True, "fake-project", {"cluster-name": "fake-cluster"}], done.stderr
    assert {request.headers["host"] for request in fake.requests} == {f"127.0.0.1:{fake.port}"}


@pytest.mark.parametrize("fault", ["400", "503"])
def test_a_status_is_answered_as_often_as_ordered(fake, fault):
    fake.fail(fault, 2, match="instance/id")
    assert gce(fake, "instance/name").status_code == 200
    statuses = [gce(fake, "instance/id").status_code for _ in range(3)]
    assert statuses == [int(fault), int(fault), 200]
    assert [request.fault for request in fake.requests] == [None, fault, fault, None]
    assert [request.status for request in fake.requests] == [200, int(fault), int(fault), 200]


def test_each_fault_is_what_it_is_called(fake):
    right = gce(fake, "instance/id").content

    def once(kind: str, **more: float) -> requests.Response:
        fake.fail(kind, 1, **more)
        return gce(fake, "instance/id")

    for kind in ("reset", "truncated"):
        with pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
            once(kind)
    assert len(once("huge").content) == 1 << 20
    assert once("redirect").status_code == 302
    with pytest.raises(UnicodeDecodeError):
        once("rubbish").content.decode()
    for kind, more in (("stall", {"seconds": 0.3}), ("slow", {})):
        begin = time.monotonic()
        assert once(kind, **more).content == right
        assert time.monotonic() - begin >= 0.3
    assert gce(fake, "instance/id").content == right


@pytest.mark.parametrize(("kind", "times"), [("flood", None), ("200", None), ("600", None), ("503", 0)])
def test_nonsense_faults_are_refused(kind, times):
    with pytest.raises(ValueError, match="Expected"):
        FakeMetadata().fail(kind, times)


def test_it_ends_at_once_whatever_is_open():
    with ThreadPoolExecutor(2) as pool:
        with FakeMetadata() as fake:
            fake.fail("stall", match="instance/id")
            paths = ["instance/id", "instance/name?wait_for_change=true"]
            hanging = [pool.submit(gce, fake, path) for path in paths]
            fake.wait_for_requests(2)
            begin = time.monotonic()
        assert time.monotonic() - begin < 2
        assert all(isinstance(each.exception(10), requests.RequestException) for each in hanging)


def test_it_can_be_started_again_with_what_it_says():
    fake = FakeMetadata()
    for turn in range(2):
        with fake:
            fake.gce.set("instance/turn", str(turn))
            assert gce(fake, "instance/turn").text == str(turn)
            assert gce(fake, "instance/turn?wait_for_change=true&timeout_sec=0").status_code == 200
            with pytest.raises(RuntimeError, match="one `with` at a time"):
                fake.__enter__()
    assert len(fake.requests) == 4
    with pytest.raises(RuntimeError, match="is not"):
        _ = fake.environment


def test_waiting_for_questions_that_do_not_come_is_bounded(fake):
    with pytest.raises(TimeoutError, match=r"Expected 1 requests with 'x' within 0\.1 s\. Received: 0"):
        fake.wait_for_requests(1, "x", 0.1)
