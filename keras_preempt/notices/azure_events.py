"""Reads the document in which Azure announces what it will do to machines."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Any

_STATUSES = ("Scheduled", "Started")


@dataclass(frozen=True)
class AzureEvent:
    """One announced event.

    Attributes:
        id: Its identity.
        kind: ``Preempt``, ``Terminate``, ``Reboot``, ``Redeploy``, ``Freeze``, or one that Azure adds later.
        resources: Names of the machines that it is about.
        started: Whether it has begun.
        not_before: When it begins at the earliest, in seconds since 1970; None for at once, and when it has begun.
    """

    id: str
    kind: str
    resources: tuple[str, ...]
    started: bool
    not_before: float | None

    def is_about(self, machine: str) -> bool:
        """Whether a machine of this name is concerned; Azure does not distinguish capital letters in names."""
        return machine.casefold() in (name.casefold() for name in self.resources)


@dataclass(frozen=True)
class AzureDocument:
    """All that is announced.

    Attributes:
        incarnation: Another number: another content.
        events: Those that could be read.
        problem: What the first event that could not be read had instead, or None.
    """

    incarnation: int
    events: tuple[AzureEvent, ...]
    problem: str | None


def read_document(said: dict[str, Any]) -> AzureDocument:
    """Reads a whole document. One event that makes no sense does not hide the others.

    Raises:
        ValueError: The document makes no sense. The message says what was expected and received.
    """
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
