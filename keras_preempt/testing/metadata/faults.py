"""What can go wrong between a process and its metadata server, on demand."""

from __future__ import annotations

import threading

from keras_preempt.testing.server import OrderedFault

METADATA_FAULTS = ("huge", "redirect", "reset", "rubbish", "slow", "stall", "truncated")
"""Kinds of fault, beside any HTTP status from 400 to 599 as text.

- ``"huge"``: an answer of a MiB.
- ``"redirect"``: 302 to another path.
- ``"reset"``: the connection is reset instead of answered.
- ``"rubbish"``: status 200 with bytes that are no text.
- ``"slow"``: the right answer, 20 bytes a second.
- ``"stall"``: silence, then the right answer.
- ``"truncated"``: half of the right answer, then a reset.
"""


class MetadataFaults:
    """The faults that are active."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ordered: list[OrderedFault] = []

    def order(self, kind: str, times: int | None, match: str, seconds: float | None) -> None:
        """Makes a fault happen to questions whose text contains `match`."""
        status = kind.isascii() and kind.isdigit() and 400 <= int(kind) <= 599
        if kind not in METADATA_FAULTS and not status:
            raise ValueError(
                f"Expected a kind of fault out of {', '.join(METADATA_FAULTS)}, or an HTTP status from 400 to 599. "
                f"Received: {kind!r}. Correct the kind."
            )
        if times is not None and times < 1:
            raise ValueError(
                f"Expected times of at least 1, or None for until recover(). Received: {times!r}. "
                "Correct the number."
            )
        with self._changed:
            self._ordered.append(OrderedFault(kind, times, match, seconds))

    def recover(self) -> None:
        """Ends all faults, also the stalls that are under way."""
        with self._changed:
            self._ordered.clear()
            self._changed.notify_all()

    def choose(self, text: str) -> OrderedFault | None:
        """The fault that happens to a question, or None."""
        with self._changed:
            for fault in self._ordered:
                if fault.match in text:
                    if fault.left is not None:
                        fault.left -= 1
                        if fault.left == 0 and fault.kind != "stall":
                            self._ordered.remove(fault)
                        elif fault.left < 0:
                            continue
                    return fault
        return None

    def wait(self, fault: OrderedFault, stopping: threading.Event) -> None:
        """Waits as long as a stall lasts: its seconds, or until `recover` or the end of the server."""
        with self._changed:
            self._changed.wait_for(
                lambda: stopping.is_set() or not any(one is fault for one in self._ordered), fault.seconds
            )

    def wake(self) -> None:
        """Makes stalls check whether the server is stopping."""
        with self._changed:
            self._changed.notify_all()
