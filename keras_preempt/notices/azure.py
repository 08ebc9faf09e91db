"""Notices of Azure: scheduled events that end this machine, and their cancellation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from keras_preempt.notices import Notice, OnNotice
from keras_preempt.notices.cloud import Cloud, Grace, Probe, Row
from keras_preempt.notices.metadata_client import Address, Answer, MetadataClient, MetadataError
from keras_preempt.notices.polling import Backoff, PollingSource
from keras_preempt.process import environment

logger = logging.getLogger("keras_preempt")

_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_COMPUTE = "/metadata/instance/compute?api-version=2021-02-01"
_HEADERS = {"Metadata": "true"}
_ENDS = ("Preempt", "Terminate", "Reboot", "Redeploy")
_STATUSES = ("Scheduled", "Started")
_FIRST_ANSWER_SECONDS = 150.0  # The first question switches scheduled events on, which may take two minutes.

ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
"""The chassis asset tag of every Azure machine; other Hyper-V machines have Microsoft's name, but not this tag."""


class AzureEvent(NamedTuple):
    """One announced event; `kind` is such as ``Preempt``, ``Reboot`` or ``Freeze``, or one that Azure adds later."""

    id: str
    kind: str
    resources: tuple[str, ...]  # Names of the machines that it is about.
    started: bool
    not_before: float | None  # In seconds since 1970; None if it begins at once or has begun.


class AzureDocument(NamedTuple):
    incarnation: int  # Changes whenever the content does.
    events: tuple[AzureEvent, ...]  # Those that could be read.
    problem: str | None  # What is wrong with the first event that could not be read.


class AzureScheduledEvents(PollingSource):
    """Listens for scheduled events that end this machine.

    It only ever reads. Acknowledging an event would let Azure begin at once, for every machine in it: the owner of the
    machines has to decide that.

    A notice whose event is moved to another time comes again, with the same id; one whose event is canceled, or over,
    is withdrawn. Azure recommends asking once a second.
    """

    def __init__(
        self,
        on_notice: OnNotice,
        *,
        on_withdrawn: OnNotice,
        address: Address | None = None,
        poll_seconds: float = 1.0,
        answer_seconds: float = 10.0,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__("Azure scheduled events", on_notice, backoff)
        self._on_withdrawn = on_withdrawn
        self._client = MetadataClient(address or AZURE.address(), self._stopping)
        self._poll_seconds = poll_seconds
        self._events_seconds = _FIRST_ANSWER_SECONDS
        self._answer_seconds = answer_seconds
        self._machine: str | None = None
        self._incarnation: int | None = None
        self._announced: dict[str, tuple[AzureEvent, Notice]] = {}
        self._others: set[str] = set()  # Events that were logged, since they do not end the machine.

    def _ask(self) -> float:
        if self._machine is None:
            # First: the events of the other machines of a scale set come with the same document.
            answer = self._client.ask(_COMPUTE, headers=_HEADERS, timeout=self._answer_seconds)
            answer.check_status()
            name = answer.json().get("name")
            if not isinstance(name, str) or not name:
                raise answer.unexpected("the machine's name", repr(name)[:60])
            self._machine = name
        answer = self._client.ask(_EVENTS, headers=_HEADERS, timeout=self._events_seconds)
        answer.check_status()
        self._events_seconds = self._answer_seconds
        said = answer.json()
        try:
            document = parse_document(said)
        except ValueError as error:
            raise MetadataError(f"{error} It came from {answer.question}.") from None
        if document.incarnation != self._incarnation:
            self._hear(document, self._machine)
            if document.problem is not None:
                raise MetadataError(f"{document.problem} It came from {answer.question}.")
            self._incarnation = document.incarnation
        return self._poll_seconds

    def _hear(self, document: AzureDocument, machine: str) -> None:
        machine = machine.casefold()  # Names in Azure are not case-sensitive.
        ours = {
            event.id: event
            for event in document.events
            if machine in (name.casefold() for name in event.resources)
        }
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
                self._on_withdrawn(self._announced.pop(identity)[1])
            self._others &= ours.keys()

    def _hear_end(self, event: AzureEvent) -> None:
        now = time.time()
        deadline = now if event.not_before is None else event.not_before
        if event.id in self._announced:
            earlier, notice = self._announced[event.id]
            if (earlier.started, earlier.not_before) == (event.started, event.not_before):
                return
            if event.started and notice.deadline is not None:
                deadline = min(deadline, notice.deadline)
        reason = f"{event.kind} {'has started' if event.started else 'is scheduled'}"
        notice = Notice("Azure scheduled events", reason, now, deadline, id=event.id)
        self._announced[event.id] = event, notice
        self._on_notice(notice)


def parse_document(said: dict[str, Any]) -> AzureDocument:
    """Raises ValueError if the whole document is malformed; one malformed event does not hide the others."""
    incarnation, listed = said.get("DocumentIncarnation"), said.get("Events")
    if not isinstance(incarnation, int) or not isinstance(listed, list):
        raise ValueError(
            f"Expected a DocumentIncarnation and a list of Events. Received: {repr(said)[:100]}."
        )
    events, problem = [], None
    for one in listed:
        try:
            events.append(_read_event(one))
        except ValueError as error:
            problem = problem or str(error)
    return AzureDocument(incarnation, tuple(events), problem)


def _read_event(said: Any) -> AzureEvent:
    if not isinstance(said, dict):
        raise ValueError(f"Expected an event. Received: {repr(said)[:100]}.")
    identity, kind, resources = said.get("EventId"), said.get("EventType"), said.get("Resources")
    status, not_before = said.get("EventStatus"), said.get("NotBefore")
    if not (
        isinstance(identity, str)
        and identity
        and isinstance(kind, str)
        and isinstance(resources, list)
        and all(isinstance(name, str) for name in resources)
        and status in _STATUSES
        and (not_before is None or isinstance(not_before, str))
    ):
        raise ValueError(
            "Expected an event with EventId, EventType, Resources, EventStatus out of "
            f"{', '.join(_STATUSES)}, and NotBefore. Received: {repr(said)[:200]}."
        )
    return AzureEvent(identity, kind, tuple(resources), status == "Started", _instant(not_before or ""))


def _instant(text: str) -> float | None:
    """A time such as Mon, 19 Sep 2016 18:29:47 GMT; empty once the event has begun."""
    if not text.strip():
        return None
    try:
        instant = parsedate_to_datetime(text)
        return instant.replace(tzinfo=instant.tzinfo or timezone.utc).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        raise ValueError(
            f"Expected NotBefore such as Mon, 19 Sep 2016 18:29:47 GMT. Received: {text[:60]!r}."
        ) from None


def _firmware(field: Callable[[str], str]) -> str | None:
    found = field("sys_vendor"), field("chassis_asset_tag")
    return (
        f"{found[0]} with the asset tag of Azure" if found == ("Microsoft Corporation", ASSET_TAG) else None
    )


def _is_azures(answer: Answer) -> bool:
    try:
        return answer.status == 200 and "azEnvironment" in answer.json()
    except MetadataError:
        return False


AZURE = Cloud(
    "azure",
    variables=(environment.AZURE_METADATA_HOST,),
    firmware=_firmware,
    probe=Probe(_COMPUTE, _is_azures, _HEADERS),
    sources=lambda on_notice, on_withdrawn, lead: (
        AzureScheduledEvents(on_notice, on_withdrawn=on_withdrawn),
    ),
    machines=(Row("azure", grace=Grace(30.0, "Azure's for Spot machines")),),
)
