"""Google Compute Engine's metadata server: the parts that matter to training."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any, ClassVar

from keras_preempt.process import environment
from keras_preempt.testing.metadata.wire import GOOGLE_FLAVOR, FakeCloud, Question, below, entry_names
from keras_preempt.testing.server import Reply

_ROOT = "/computeMetadata/v1/"
_LONGEST_WAIT = 3600.0

_KEYS = {
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


class FakeGce(FakeCloud):
    """The keys of one machine, which can be changed at any time: ``fake.gce``."""

    root = "/"
    variables: ClassVar[dict[str, str]] = {
        environment.GCE_METADATA_HOST: "{}",
        environment.GCE_METADATA_IP: "{}",
    }

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values = dict(_KEYS)
        self._versions = dict.fromkeys(_KEYS, 1)
        self._version = 1
        self._ended = False

    def preempt(self) -> None:
        """Announces the preemption of this machine."""
        self.set("instance/preempted", "TRUE")

    def maintenance(self, event: str) -> None:
        """Announces host maintenance, or with ``"NONE"`` that there is none (any more).

        Args:
            event: Usually ``"NONE"``, ``"MIGRATE_ON_HOST_MAINTENANCE"`` or
                ``"TERMINATE_ON_HOST_MAINTENANCE"``; anything else is served too.
        """
        self.set("instance/maintenance-event", event)

    def plan_maintenance(self, start: str | None) -> None:
        """Plans maintenance days ahead, from a time such as ``2030-01-01T08:00:00Z`` on; None for none."""
        plan = {"maintenance_type": "SCHEDULED", "can_reschedule": "FALSE", "maintenance_status": "PENDING"}
        for name, value in {**plan, "window_start_time": start}.items():
            self.set(f"instance/upcoming-maintenance/{name}", value if start else None)

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

    def start(self) -> None:
        """Lets questions wait (again)."""
        self._ended = False

    def end(self) -> None:
        """Answers every question that is kept waiting."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def answer(self, question: Question) -> Reply:
        """Answers a question, possibly after a long wait."""
        if question.path == "/":
            return Reply(200, b"computeMetadata/\n", GOOGLE_FLAVOR)
        if question.headers.get("metadata-flavor") != "Google":
            return Reply(403, b"Missing Metadata-Flavor:Google header.")
        if "x-forwarded-for" in question.headers:
            return Reply(403, b"X-Forwarded-For header is not allowed.")
        if question.method != "GET" or not question.path.startswith(_ROOT):
            return Reply(404, b"", GOOGLE_FLAVOR)
        path = question.path[len(_ROOT) :]
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
        recursive = query.get("recursive", "").lower() == "true"
        found = below(self._values, path)
        if not found:
            return Reply(404, b"Not found", GOOGLE_FLAVOR)
        if recursive:
            headers["Content-Type"] = "application/json"
            return Reply(200, json.dumps(_tree(found)).encode(), headers)
        if path and not path.endswith("/"):
            return Reply(301, b"", {**GOOGLE_FLAVOR, "Location": f"{_ROOT}{path}/"})
        return Reply(200, "".join(f"{name}\n" for name in entry_names(found)).encode(), headers)


def _tree(flat: Mapping[str, str]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *folders, name = key.split("/")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = value
    return tree
