"""What the metadata servers of Google Compute Engine, Amazon EC2 and Azure answer, as far as it matters to training."""

from __future__ import annotations

import abc
import json
import secrets
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import formatdate
from typing import Any, ClassVar, TypeVar

from keras_preempt.process import environment
from keras_preempt.testing.server import Reply

V = TypeVar("V")

GOOGLE_FLAVOR = {"Metadata-Flavor": "Google"}
"""The header of everything that Google's server says."""


@dataclass(frozen=True)
class Question:
    """One question as the clouds see it; `path` is without its query."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


class FakeCloud(abc.ABC):
    """What one cloud's metadata server says, which can be changed at any time."""

    root: ClassVar[str]
    """What the paths that it answers begin with."""
    variables: ClassVar[dict[str, str]]
    """The environment variables that point clients to a server, with {} for its ``host:port``."""

    @abc.abstractmethod
    def answer(self, question: Question) -> Reply:
        """Answers a question, possibly after a long wait."""


class _Keys(FakeCloud):
    """A cloud that serves keys, whose names are paths."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._changed = threading.Condition()
        self._values = dict(values)
        self._versions = dict.fromkeys(values, 1)
        self._version = 1

    def set(self, path: str, value: str | None) -> None:
        """Sets any key, such as ``instance/machine-type``, or takes it away with None."""
        with self._changed:
            self._version += 1
            if value is None:
                self._values.pop(path, None)
                self._versions.pop(path, None)
            else:
                if self._values.get(path) != value:
                    self._versions[path] = self._version
                self._values[path] = value
            self._changed.notify_all()


def below(values: Mapping[str, V], path: str) -> dict[str, V]:
    """The values in a folder and its folders, by what follows the folder's name."""
    folder = path if path.endswith("/") or not path else f"{path}/"
    return {key[len(folder) :]: value for key, value in values.items() if key.startswith(folder)}


def entry_names(keys: Iterable[str]) -> list[str]:
    """The names directly in a folder, given the keys in it and its folders; those of folders end with a slash."""
    return sorted({key.partition("/")[0] + ("/" if "/" in key else "") for key in keys})


_GCE_ROOT = "/computeMetadata/v1/"
_LONGEST_WAIT = 3600.0  # seconds
_MACHINE = {
    "instance/attributes/cluster-name": "fake-cluster",
    "instance/guest-attributes/fake/key": "value",
    "instance/hostname": "fake-machine.c.fake-project.internal",
    "instance/id": "1234567890123456789",
    "instance/machine-type": "projects/123456789012/machineTypes/n1-standard-8",
    "instance/maintenance-event": "NONE",
    "instance/name": "fake-machine",
    "instance/preempted": "FALSE",
    "instance/scheduling/automatic-restart": "FALSE",
    "instance/scheduling/on-host-maintenance": "TERMINATE",
    "instance/scheduling/preemptible": "TRUE",
    "instance/zone": "projects/123456789012/zones/us-central1-b",
    "project/numeric-project-id": "123456789012",
    "project/project-id": "fake-project",
}


class GceMetadata(_Keys):
    """The keys of one machine, which can be changed at any time: ``fake.gce``."""

    root = "/"
    variables: ClassVar[dict[str, str]] = {
        environment.GCE_METADATA_HOST: "{}",
        environment.GCE_METADATA_IP: "{}",
    }

    def __init__(self) -> None:
        super().__init__(_MACHINE)
        self._ended = False

    def preempt(self) -> None:
        """Announces the preemption of this machine."""
        self.set("instance/preempted", "TRUE")

    def maintenance(self, event: str) -> None:
        """Announces host maintenance, such as ``"MIGRATE_ON_HOST_MAINTENANCE"`` or ``"TERMINATE_ON_HOST_MAINTENANCE"``.

        ``"NONE"`` says that there is none (any more); anything else is served too.
        """
        self.set("instance/maintenance-event", event)

    def plan_maintenance(self, start: str | None) -> None:
        """Plans maintenance days ahead, from a time such as ``2030-01-01T08:00:00Z`` on; None for none."""
        plan = {"maintenance_type": "SCHEDULED", "can_reschedule": "FALSE", "maintenance_status": "PENDING"}
        for name, value in {**plan, "window_start_time": start}.items():
            self.set(f"instance/upcoming-maintenance/{name}", value if start else None)

    def start(self) -> None:
        """Lets questions wait (again)."""
        self._ended = False

    def end(self) -> None:
        """Answers every question that is kept waiting."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def answer(self, question: Question) -> Reply:
        if question.path == "/":
            return Reply(200, b"computeMetadata/\n", GOOGLE_FLAVOR)
        if question.headers.get("metadata-flavor") != "Google":
            return Reply(403, b"Missing Metadata-Flavor:Google header.")
        if "x-forwarded-for" in question.headers:
            return Reply(403, b"X-Forwarded-For header is not allowed.")
        if question.method != "GET" or not question.path.startswith(_GCE_ROOT):
            return Reply(404, b"", GOOGLE_FLAVOR)
        path = question.path[len(_GCE_ROOT) :]
        with self._changed:
            if question.query.get("wait_for_change", "").lower() == "true":
                known = question.query.get("last_etag", self._etag(path))
                try:
                    seconds = float(question.query.get("timeout_sec", _LONGEST_WAIT))
                except ValueError:
                    seconds = 0.0
                seconds = max(0.0, min(seconds, _LONGEST_WAIT))
                self._changed.wait_for(lambda: self._ended or self._etag(path) != known, seconds)
            return self._read(path, question.query)

    def _etag(self, path: str) -> str:
        if path in self._versions:
            return f"{self._versions[path]:016x}"
        return f"{max(below(self._versions, path).values(), default=0):016x}"

    def _read(self, path: str, query: Mapping[str, str]) -> Reply:
        headers = {**GOOGLE_FLAVOR, "ETag": self._etag(path), "Content-Type": "application/text"}
        if path in self._values:
            return Reply(200, self._values[path].encode(), headers)
        found = below(self._values, path)
        if not found:
            return Reply(404, b"Not found", GOOGLE_FLAVOR)
        if query.get("recursive", "").lower() == "true":
            tree: dict[str, Any] = {}
            for key, value in found.items():
                *folders, name = key.split("/")
                place = tree
                for folder in folders:
                    place = place.setdefault(folder, {})
                place[name] = value
            headers["Content-Type"] = "application/json"
            return Reply(200, json.dumps(tree).encode(), headers)
        if path and not path.endswith("/"):
            return Reply(301, b"", {**GOOGLE_FLAVOR, "Location": f"{_GCE_ROOT}{path}/"})
        return Reply(200, "".join(f"{name}\n" for name in entry_names(found)).encode(), headers)


_AWS_ROOT = "/latest/meta-data/"
_DOCUMENT = "/latest/dynamic/instance-identity/document"
_TOKEN_TTL = "X-aws-ec2-metadata-token-ttl-seconds"
_LONGEST_TTL = 21600

_INSTANCE = {
    "ami-id": "ami-0123456789abcdef0",
    "hostname": "ip-10-0-0-1.ec2.internal",
    "instance-id": "i-0123456789abcdef0",
    "instance-life-cycle": "spot",
    "instance-type": "p3.2xlarge",
    "placement/availability-zone": "us-east-1a",
    "placement/region": "us-east-1",
}


def _as_text(instant: float) -> str:
    return datetime.fromtimestamp(instant, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class AwsMetadata(_Keys):
    """The metadata of one Spot instance, which can be changed at any time: ``fake.aws``."""

    root = "/latest/"
    variables: ClassVar[dict[str, str]] = {environment.AWS_METADATA_ENDPOINT: "http://{}/"}

    def __init__(self) -> None:
        super().__init__(_INSTANCE)
        self._tokens: dict[str, float] = {}

    def interrupt(self, action: str = "terminate", at: float | None = None) -> None:
        """Announces an interruption: usually ``"terminate"``, ``"stop"`` or ``"hibernate"``; anything else is served.

        `at` is in seconds since 1970, of which whole ones are served; in two minutes by default.
        """
        instant = _as_text(time.time() + 120 if at is None else at)
        self.set("spot/instance-action", json.dumps({"action": action, "time": instant}))
        if action == "terminate":
            self.set("spot/termination-time", instant)

    def rebalance(self, at: float | None = None) -> None:
        """Recommends to move elsewhere; `at` is when this was decided, now by default."""
        instant = _as_text(time.time() if at is None else at)
        self.set("events/recommendations/rebalance", json.dumps({"noticeTime": instant}))

    def clear(self) -> None:
        """Takes an interruption and a recommendation away."""
        for path in ("spot/instance-action", "spot/termination-time", "events/recommendations/rebalance"):
            self.set(path, None)

    def expire_tokens(self) -> None:
        """Makes all tokens invalid."""
        with self._changed:
            self._tokens.clear()

    def answer(self, question: Question) -> Reply:
        if question.path == "/latest/api/token":
            return self._give_token(question)
        token = question.headers.get("x-aws-ec2-metadata-token", "")
        with self._changed:
            if self._tokens.get(token, 0.0) <= time.monotonic():
                return Reply(401, b"Unauthorized")
            if question.method != "GET":
                return Reply(405, b"Method Not Allowed")
            if question.path == _DOCUMENT:
                document = {
                    "accountId": "123456789012",
                    "architecture": "x86_64",
                    "availabilityZone": self._values.get("placement/availability-zone"),
                    "imageId": self._values.get("ami-id"),
                    "instanceId": self._values.get("instance-id"),
                    "instanceType": self._values.get("instance-type"),
                    "region": self._values.get("placement/region"),
                    "version": "2017-09-30",
                }
                return Reply(200, json.dumps(document).encode())
            path = question.path.removeprefix(_AWS_ROOT)
            if path in self._values:
                return Reply(200, self._values[path].encode())
            if question.path.startswith(_AWS_ROOT) and (found := below(self._values, path)):
                return Reply(200, "\n".join(entry_names(found)).encode())
        return Reply(404, b"Not Found")

    def _give_token(self, question: Question) -> Reply:
        if question.method != "PUT":
            return Reply(405, b"Method Not Allowed")
        if "x-forwarded-for" in question.headers:
            return Reply(403, b"Forbidden")
        wanted = question.headers.get(_TOKEN_TTL.lower(), "")
        if not (wanted.isascii() and wanted.isdigit() and 1 <= int(wanted) <= _LONGEST_TTL):
            return Reply(400, b"Bad Request")
        token = secrets.token_urlsafe(40)
        with self._changed:
            self._tokens[token] = time.monotonic() + int(wanted)
        return Reply(200, token.encode(), {_TOKEN_TTL: wanted, "Content-Type": "text/plain"})


_NOTICE_SECONDS = {"Preempt": 30, "Terminate": 300, "Redeploy": 600}
_DEFAULT_NOTICE_SECONDS = 900
_COMPUTE = {
    "azEnvironment": "AzurePublicCloud",
    "location": "westeurope",
    "osType": "Linux",
    "priority": "Spot",
    "provider": "Microsoft.Compute",
    "resourceGroupName": "fake-group",
    "vmId": "02aab8a4-74ef-476e-8182-f6d2ba4166a6",
    "vmScaleSetName": "",
    "vmSize": "Standard_NC6s_v3",
}


class AzureMetadata(FakeCloud):
    """The metadata of one machine, and its scheduled events, which can be changed at any time: ``fake.azure``."""

    root = "/metadata/"
    variables: ClassVar[dict[str, str]] = {environment.AZURE_METADATA_HOST: "{}"}

    def __init__(self, name: str = "fake-vm_0") -> None:
        self.name = name
        self._lock = threading.Lock()
        self._events: dict[str, dict[str, Any]] = {}
        self._incarnation = 1

    def schedule(
        self,
        kind: str = "Preempt",
        *,
        not_before: float | None = None,
        resources: Collection[str] | None = None,
        started: bool = False,
    ) -> str:
        """Announces an event, and returns its id; `started`: it has begun.

        Its kind is usually ``"Preempt"``, ``"Terminate"``, ``"Reboot"``, ``"Redeploy"`` or ``"Freeze"``; anything else
        is served too. It begins at the earliest at `not_before`, in seconds since 1970, of which whole ones are served;
        by default as late as Azure promises for its kind. `resources`: the machines concerned; this one by default.
        """
        identity = str(uuid.uuid4()).upper()
        if not_before is None:
            not_before = time.time() + _NOTICE_SECONDS.get(kind, _DEFAULT_NOTICE_SECONDS)
        self.put(
            identity,
            {
                "EventId": identity,
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": [self.name] if resources is None else list(resources),
                "EventStatus": "Started" if started else "Scheduled",
                "NotBefore": "" if started else formatdate(not_before, usegmt=True),
                "Description": "",
                "EventSource": "Platform",
                "DurationInSeconds": 9 if kind == "Freeze" else -1,
            },
        )
        return identity

    def move(self, identity: str, not_before: float) -> None:
        """Moves an event to another time, in seconds since 1970. Raises KeyError if there is no such event."""
        self.put(identity, {**self._events[identity], "NotBefore": formatdate(not_before, usegmt=True)})

    def begin(self, identity: str) -> None:
        """Lets an event begin. Raises KeyError if there is no such event."""
        self.put(identity, {**self._events[identity], "EventStatus": "Started", "NotBefore": ""})

    def cancel(self, identity: str) -> None:
        """Takes an event away: it was cancelled, or it is over. Raises KeyError if there is no such event."""
        with self._lock:
            del self._events[identity]
            self._incarnation += 1

    def put(self, identity: str, event: dict[str, Any]) -> None:
        """Serves any JSON object as an event."""
        with self._lock:
            self._events[identity] = event
            self._incarnation += 1

    def answer(self, question: Question) -> Reply:
        if question.headers.get("metadata", "").lower() != "true" or "x-forwarded-for" in question.headers:
            return Reply.of({"error": "Bad request. Required metadata header not specified"}, 400)
        if not question.query.get("api-version"):
            return Reply.of(
                {"error": "Bad request. api-version was not specified.", "newest-versions": ["2021-02-01"]},
                400,
            )
        if question.path == "/metadata/scheduledevents":
            if question.method == "POST":
                return Reply(200)  # An acknowledgement: noted in the record of questions, otherwise ignored.
            with self._lock:
                events = list(self._events.values())
                return Reply.of({"DocumentIncarnation": self._incarnation, "Events": events})
        if question.method != "GET":
            return Reply.of({"error": "Method not allowed."}, 405)
        compute = {**_COMPUTE, "name": self.name}
        place: Any = {"instance": {"compute": compute, "network": {"interface": []}}}
        for name in question.path.removeprefix("/metadata/").strip("/").split("/"):
            place = place.get(name) if isinstance(place, dict) else None
        if place is None:
            return Reply.of({"error": "Not found"}, 404)
        if question.query.get("format") == "text" and not isinstance(place, (dict, list)):
            return Reply(200, str(place).encode(), {"Content-Type": "text/plain"})
        return Reply.of(place)
