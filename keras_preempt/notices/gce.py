"""Notices of Google Compute Engine: host maintenance, and preemption of Spot and preemptible machines.

Two keys, and a source with a thread for each. One long poll on all of ``instance/`` would bring both, but also the
start-up script, SSH keys and whatever else somebody has stored there, of any size, on every change of any of them; and
the warning ahead of maintenance is promised to who asks for the maintenance key itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from keras_preempt.notices.backoff import Backoff
from keras_preempt.notices.gce_key import GceKey, Reading
from keras_preempt.notices.gce_upcoming import UpcomingMaintenance
from keras_preempt.notices.metadata_address import Address, gce_address
from keras_preempt.notices.notice import Notice
from keras_preempt.notices.source_thread import AskingSource
from keras_preempt.notices.stopping import Stopping

logger = logging.getLogger("keras_preempt")

MAINTENANCE_LEAD_SECONDS = 60.0
"""From the announcement of host maintenance to the end of a machine without accelerators."""

GPU_MAINTENANCE_LEAD_SECONDS = 3600.0
"""The same for a machine with GPUs, which are never migrated."""

PREEMPTION_LEAD_SECONDS = 30.0
"""From the announcement of a preemption to the end of the machine."""

_POLL_SECONDS = 60.0
_LEAST_SECONDS = 0.5

_NONE, _MIGRATE, _TERMINATE = "NONE", "MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE"


class GceMaintenance(AskingSource):
    """Listens for host maintenance that ends this machine, from `start` until `stop`.

    A migration to another host is no end: it is logged. Maintenance that was announced and then called off, or that
    turned into a migration, is withdrawn.

    Args:
        on_notice: Called in the source's thread with each notice.
        on_withdrawn: Called in the source's thread with a notice that does not hold any more.
        lead_seconds: From the announcement to the end of the machine, in seconds: `GPU_MAINTENANCE_LEAD_SECONDS` on a
            machine with GPUs. An announcement that was there before it could be heard, nobody knows for how long,
            is taken to be as old as it can be, and to leave `MAINTENANCE_LEAD_SECONDS` all the same.
        address: Where the metadata server is; as the environment says by default.
        poll_seconds: How long one question may stay open, in seconds.
        least_seconds: The shortest time between two questions, in seconds.
        backoff: How long to wait after failures.

    Raises:
        ValueError: The environment names no address.
    """

    def __init__(
        self,
        on_notice: Callable[[Notice], None],
        *,
        on_withdrawn: Callable[[Notice], None],
        lead_seconds: float = MAINTENANCE_LEAD_SECONDS,
        address: Address | None = None,
        poll_seconds: float = _POLL_SECONDS,
        least_seconds: float = _LEAST_SECONDS,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__("GCE maintenance", backoff)
        address = address or gce_address()
        self._on_notice = on_notice
        self._on_withdrawn = on_withdrawn
        self._lead_seconds = lead_seconds
        self._key = GceKey(
            address,
            "instance/maintenance-event",
            (_NONE, _MIGRATE, _TERMINATE),
            poll_seconds=poll_seconds,
            least_seconds=least_seconds,
        )
        self._upcoming = UpcomingMaintenance(address)
        self._value: str | None = None
        self._announced: Notice | None = None

    def _ask(self, stopping: Stopping) -> float:
        reading = self._key.next(stopping)
        value = reading.value
        earlier, self._value = self._value, value
        if value != earlier:
            if value == _TERMINATE:
                self._announce(reading)
            elif self._announced is not None:
                withdrawn, self._announced = self._announced, None
                self._on_withdrawn(withdrawn)
            if value == _MIGRATE:
                logger.info(
                    "GCE maintenance: this machine is about to move to another host. Training goes on; a step "
                    "may take longer."
                )
        self._upcoming.look(stopping)
        return self._key.pause

    def _announce(self, reading: Reading) -> None:
        now = time.time()
        lead = max(self._lead_seconds - reading.age, min(self._lead_seconds, MAINTENANCE_LEAD_SECONDS))
        identity = f"maintenance-event {reading.etag}"
        self._announced = Notice(
            "GCE maintenance", _TERMINATE, now, now + lead, cancellable=True, id=identity
        )
        self._on_notice(self._announced)


class GcePreemption(AskingSource):
    """Listens for the preemption of this machine, from `start` until `stop`. It happens once, and is never taken back.

    Args:
        on_notice: Called in the source's thread with the notice.
        on_withdrawn: Never called; here because all sources take it.
        address: Where the metadata server is; as the environment says by default.
        poll_seconds: How long one question may stay open, in seconds.
        least_seconds: The shortest time between two questions, in seconds.
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
        poll_seconds: float = _POLL_SECONDS,
        least_seconds: float = _LEAST_SECONDS,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__("GCE preemption", backoff)
        self._on_notice = on_notice
        self._key = GceKey(
            address or gce_address(),
            "instance/preempted",
            ("TRUE", "FALSE"),
            poll_seconds=poll_seconds,
            least_seconds=least_seconds,
        )

    def _ask(self, stopping: Stopping) -> float | None:
        if self._key.next(stopping).value == "FALSE":
            return self._key.pause
        now = time.time()
        self._on_notice(
            Notice("GCE preemption", "preempted", now, now + PREEMPTION_LEAD_SECONDS, id="preempted")
        )
        return None
