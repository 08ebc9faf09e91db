"""Azure's instance metadata service: the parts that matter to training."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection
from email.utils import formatdate
from typing import Any, ClassVar

from keras_preempt.process import environment
from keras_preempt.testing.metadata.wire import FakeCloud, Question
from keras_preempt.testing.server import Reply

_NOTICE_SECONDS = {"Preempt": 30, "Terminate": 300, "Redeploy": 600}
_DEFAULT_NOTICE_SECONDS = 900


class FakeAzure(FakeCloud):
    """The metadata of one machine and its scheduled events, which can be changed at any time: ``fake.azure``.

    Attributes:
        name: The machine's name.
    """

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
        """Announces an event, and returns its id.

        Args:
            kind: Usually ``"Preempt"``, ``"Terminate"``, ``"Reboot"``, ``"Redeploy"`` or ``"Freeze"``; anything else
                is served too.
            not_before: When it begins at the earliest, in seconds since 1970; whole seconds are served. By default
                as late as Azure promises for its kind.
            resources: The names of the machines concerned; this one by default.
            started: Whether it has begun.
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
        place: Any = {"instance": self._instance()}
        for name in question.path.removeprefix("/metadata/").strip("/").split("/"):
            place = place.get(name) if isinstance(place, dict) else None
        if place is None:
            return Reply.of({"error": "Not found"}, 404)
        if question.query.get("format") == "text" and not isinstance(place, (dict, list)):
            return Reply(200, str(place).encode(), {"Content-Type": "text/plain"})
        return Reply.of(place)

    def _instance(self) -> dict[str, Any]:
        return {
            "compute": {
                "azEnvironment": "AzurePublicCloud",
                "location": "westeurope",
                "name": self.name,
                "osType": "Linux",
                "priority": "Spot",
                "provider": "Microsoft.Compute",
                "resourceGroupName": "fake-group",
                "vmId": "02aab8a4-74ef-476e-8182-f6d2ba4166a6",
                "vmScaleSetName": "",
                "vmSize": "Standard_NC6s_v3",
            },
            "network": {"interface": []},
        }
