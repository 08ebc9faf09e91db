"""Amazon EC2's instance metadata service, version 2: the parts that matter to training."""

from __future__ import annotations

import json
import secrets
import threading
import time
from datetime import datetime, timezone
from typing import ClassVar

from keras_preempt.process import environment
from keras_preempt.testing.metadata.wire import FakeCloud, Question, below, entry_names
from keras_preempt.testing.server import Reply

_META = "/latest/meta-data/"
_DOCUMENT = "/latest/dynamic/instance-identity/document"
_TTL = "X-aws-ec2-metadata-token-ttl-seconds"
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


class FakeAws(FakeCloud):
    """The metadata of one Spot instance, which can be changed at any time: ``fake.aws``."""

    root = "/latest/"
    variables: ClassVar[dict[str, str]] = {environment.AWS_METADATA_ENDPOINT: "http://{}/"}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values = dict(_INSTANCE)
        self._tokens: dict[str, float] = {}

    def interrupt(self, action: str = "terminate", at: float | None = None) -> None:
        """Announces that this instance will be interrupted.

        Args:
            action: Usually ``"terminate"``, ``"stop"`` or ``"hibernate"``; anything else is served too.
            at: When, in seconds since 1970; whole seconds are served. In two minutes by default.
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

    def set(self, path: str, value: str | None) -> None:
        """Sets anything below ``/latest/meta-data/``, or takes it away with None."""
        with self._lock:
            if value is None:
                self._values.pop(path, None)
            else:
                self._values[path] = value

    def expire_tokens(self) -> None:
        """Makes all tokens invalid."""
        with self._lock:
            self._tokens.clear()

    def answer(self, question: Question) -> Reply:
        if question.path == "/latest/api/token":
            return self._give_token(question)
        token = question.headers.get("x-aws-ec2-metadata-token", "")
        with self._lock:
            if self._tokens.get(token, 0.0) <= time.monotonic():
                return Reply(401, b"Unauthorized")
            if question.method != "GET":
                return Reply(405, b"Method Not Allowed")
            if question.path == _DOCUMENT:
                return Reply(200, self._document())
            path = question.path.removeprefix(_META)
            if path in self._values:
                return Reply(200, self._values[path].encode())
            if question.path.startswith(_META) and (found := below(self._values, path)):
                return Reply(200, "\n".join(entry_names(found)).encode())
        return Reply(404, b"Not Found")

    def _give_token(self, question: Question) -> Reply:
        if question.method != "PUT":
            return Reply(405, b"Method Not Allowed")
        if "x-forwarded-for" in question.headers:
            return Reply(403, b"Forbidden")
        wanted = question.headers.get(_TTL.lower(), "")
        if not (wanted.isascii() and wanted.isdigit() and 1 <= int(wanted) <= _LONGEST_TTL):
            return Reply(400, b"Bad Request")
        token = secrets.token_urlsafe(40)
        with self._lock:
            self._tokens[token] = time.monotonic() + int(wanted)
        return Reply(200, token.encode(), {_TTL: wanted, "Content-Type": "text/plain"})

    def _document(self) -> bytes:
        return json.dumps(
            {
                "accountId": "123456789012",
                "architecture": "x86_64",
                "availabilityZone": self._values.get("placement/availability-zone"),
                "imageId": self._values.get("ami-id"),
                "instanceId": self._values.get("instance-id"),
                "instanceType": self._values.get("instance-type"),
                "region": self._values.get("placement/region"),
                "version": "2017-09-30",
            }
        ).encode()
