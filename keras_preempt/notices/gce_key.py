"""One key of Google Compute Engine's metadata server, whose changes are told as they happen."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import urlencode

from keras_preempt.notices.metadata_address import Address
from keras_preempt.notices.metadata_client import Answer, MetadataClient
from keras_preempt.notices.stopping import Stopping

_FLAVOR = "metadata-flavor"
_HEADERS = {"Metadata-Flavor": "Google"}
_ANSWER_SECONDS = 10.0  # beyond what the server was asked to wait


def ask_gce(
    client: MetadataClient, path: str, stopping: Stopping, *, timeout: float = _ANSWER_SECONDS
) -> Answer:
    """Asks for something below ``/computeMetadata/v1/``; the answer may have any status.

    Raises:
        MetadataError: There is no answer, or it is not Google's.
        Stopped: `stopping` was set.
    """
    answer = client.ask(f"/computeMetadata/v1/{path}", stopping, headers=_HEADERS, timeout=timeout)
    flavor = answer.headers.get(_FLAVOR, "none")
    if flavor != "Google":  # A captive portal, or another cloud at the same address.
        raise answer.unexpected("the header Metadata-Flavor: Google", flavor[:60])
    return answer


class Reading(NamedTuple):
    """What a key holds.

    Attributes:
        value: The value.
        etag: The etag of this value.
        age: For how many seconds it may have been there at most: 0 if the server told it as it came.
    """

    value: str
    etag: str
    age: float


class GceKey:
    """A key that is watched by long polls, as Google's own guest agent does it.

    The first question is answered at once and brings the value and its etag. It also matters by itself: the server
    warns 60 seconds ahead of a maintenance event only if somebody has asked for this very key since the last one.
    Each further question is answered when the value is another one, or after `poll_seconds`.

    Args:
        address: Where the server is.
        path: The key, below ``/computeMetadata/v1/``.
        values: What it can hold.
        poll_seconds: How long the server may hold back an answer.
        least_seconds: The shortest time between two questions, should the server not hold them back at all.
    """

    def __init__(
        self,
        address: Address,
        path: str,
        values: Collection[str],
        *,
        poll_seconds: float,
        least_seconds: float,
    ) -> None:
        self._client = MetadataClient(address)
        self._path = path
        self._values = values
        self._poll_seconds = poll_seconds
        self._least_seconds = least_seconds
        self._etag: str | None = None
        self._due = 0.0
        self._last_answer = -math.inf

    def next(self, stopping: Stopping) -> Reading:
        """Waits for a value that may be another one.

        Raises:
            MetadataError: The server does not answer as documented. The next question is a first one again.
            Stopped: `stopping` was set.
        """
        known, self._etag = self._etag, None
        self._due = time.monotonic() + self._least_seconds
        if known is None:
            answer = ask_gce(self._client, self._path, stopping)
        else:
            seconds = max(1, round(self._poll_seconds))
            wait = {"wait_for_change": "true", "last_etag": known, "timeout_sec": seconds}
            answer = ask_gce(
                self._client,
                f"{self._path}?{urlencode(wait)}",
                stopping,
                timeout=seconds + _ANSWER_SECONDS,
            )
        answer.check_status()
        value, etag = answer.text(), answer.headers.get("etag")
        if value not in self._values:
            raise answer.unexpected(f"one of {', '.join(self._values)}", repr(value[:60]))
        if not etag:
            raise answer.unexpected("an ETag", "none")
        self._etag = etag
        now = time.monotonic()
        age = now - self._last_answer if known is None else 0.0
        self._last_answer = now
        return Reading(value, etag, age)

    @property
    def pause(self) -> float:
        """How long to wait before the next question, in seconds."""
        return max(0.0, self._due - time.monotonic())
