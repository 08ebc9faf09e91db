"""Notices of Azure: scheduled events that end this machine, and their cancellation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from keras_preempt.notices.azure_events import AzureDocument, AzureEvent, read_document
from keras_preempt.notices.backoff import Backoff
from keras_preempt.notices.metadata_address import Address, azure_address
from keras_preempt.notices.metadata_client import MetadataClient, MetadataError
from keras_preempt.notices.notice import Notice
from keras_preempt.notices.source_thread import AskingSource
from keras_preempt.notices.stopping import Stopping

logger = logging.getLogger("keras_preempt")

_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_COMPUTE = "/metadata/instance/compute?api-version=2021-02-01"
_HEADERS = {"Metadata": "true"}
_ENDS = ("Preempt", "Terminate", "Reboot", "Redeploy")


@dataclass(frozen=True)
class _Announced:
    notice: Notice
    event: AzureEvent


class AzureScheduledEvents(AskingSource):
    """Listens for scheduled events that end this machine, from `start` until `stop`.

    It only ever reads. An event could be acknowledged, which lets Azure begin at once and for every machine in it:
    that is for the owner of the machines to decide.

    The first question switches scheduled events on, and may take two minutes to be answered.

    Args:
        on_notice: Called in the source's thread with each notice. A notice whose event is moved to another time comes
            again, with the same id.
        on_withdrawn: Called in the source's thread with a notice whose event is cancelled, or over.
        address: Where the instance metadata service is; as the environment says by default.
        poll_seconds: The time between two questions, in seconds; Azure recommends one second.
        first_answer_seconds: How long the first answer about events may take, in seconds.
        answer_seconds: How long any other answer may take, in seconds.
        backoff: How long to wait after failures.

    Raises:
        ValueError: The environment names no address.
    """

    def __init__(
        self,
        on_notice: Callable[[Notice], None],
        *,
        on_withdrawn: Callable[[Notice], None],
        address: Address | None = None,
        poll_seconds: float = 1.0,
        first_answer_seconds: float = 150.0,
        answer_seconds: float = 10.0,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__("Azure scheduled events", backoff)
        self._on_notice = on_notice
        self._on_withdrawn = on_withdrawn
        self._client = MetadataClient(address or azure_address())
        self._poll_seconds = poll_seconds
        self._events_seconds = first_answer_seconds
        self._answer_seconds = answer_seconds
        self._machine: str | None = None
        self._incarnation: int | None = None
        self._announced: dict[str, _Announced] = {}
        self._others: set[str] = set()

    def _ask(self, stopping: Stopping) -> float:
        if self._machine is None:
            # First: the events of the other machines of a scale set come with the same document.
            self._machine = self._ask_name(stopping)
        answer = self._client.ask(_EVENTS, stopping, headers=_HEADERS, timeout=self._events_seconds)
        answer.check_status()
        self._events_seconds = self._answer_seconds
        said = answer.json()
        try:
            document = read_document(said)
        except ValueError as error:
            raise MetadataError(f"{error} It came from {answer.question}.") from None
        if document.incarnation != self._incarnation:
            self._hear(document, self._machine)
            if document.problem is not None:
                raise MetadataError(f"{document.problem} It came from {answer.question}.")
            self._incarnation = document.incarnation
        return self._poll_seconds

    def _ask_name(self, stopping: Stopping) -> str:
        answer = self._client.ask(_COMPUTE, stopping, headers=_HEADERS, timeout=self._answer_seconds)
        answer.check_status()
        name = answer.json().get("name")
        if not isinstance(name, str) or not name:
            raise answer.unexpected("the machine's name", repr(name)[:60])
        return name

    def _hear(self, document: AzureDocument, machine: str) -> None:
        ours = {event.id: event for event in document.events if event.is_about(machine)}
        for event in ours.values():
            if event.kind in _ENDS:
                self._hear_end(event)
            elif event.id not in self._others:
                self._others.add(event.id)
                logger.info(
                    "Azure scheduled events: %s of this machine, which does not end it. Training goes on.",
                    event.kind,
                )
        if document.problem is None:
            # Otherwise an event that is missing may be the one that could not be read.
            for identity in [known for known in self._announced if known not in ours]:
                self._on_withdrawn(self._announced.pop(identity).notice)
            self._others &= ours.keys()

    def _hear_end(self, event: AzureEvent) -> None:
        earlier = self._announced.get(event.id)
        if earlier is not None and (earlier.event.started, earlier.event.not_before) == (
            event.started,
            event.not_before,
        ):
            return
        now = time.time()
        deadline = now if event.not_before is None else event.not_before
        if earlier is not None and earlier.notice.deadline is not None and event.started:
            deadline = min(deadline, earlier.notice.deadline)
        notice = Notice(
            "Azure scheduled events",
            f"{event.kind} {'has started' if event.started else 'is scheduled'}",
            now,
            deadline,
            cancellable=not event.started,
            id=event.id,
        )
        self._announced[event.id] = _Announced(notice, event)
        self._on_notice(notice)
