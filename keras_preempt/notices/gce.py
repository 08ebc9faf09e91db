"""Notices of Google Compute Engine: host maintenance, and preemption of Spot and preemptible machines.

Two keys, and a source with a thread for each. One long poll on all of ``instance/`` would bring both, but also the
start-up script, SSH keys and whatever else somebody has stored there, of any size, on every change of any of them; and
only those who ask for the maintenance key itself are promised a warning ahead of maintenance.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from keras_preempt.notices import Notice, OnNotice
from keras_preempt.notices.cloud import Cloud, Grace, Probe, Row
from keras_preempt.notices.metadata_client import Address, Answer, MetadataClient, MetadataError
from keras_preempt.notices.polling import Backoff, PollingSource
from keras_preempt.process import environment
from keras_preempt.process.exit_codes import EXIT_RESTART_GCE, EXIT_RESTART_TPU

logger = logging.getLogger("keras_preempt")

MAINTENANCE_LEAD = 60.0
"""Seconds from the announcement of host maintenance to the end of a machine without GPUs."""

GPU_MAINTENANCE_LEAD = 3600.0
"""The same for a machine with GPUs, which is never migrated.

Source of both: cloud.google.com/compute/docs/gpus/gpu-host-maintenance.
"""

PREEMPTION_LEAD = 30.0  # Seconds from the announcement of a preemption to the end of the machine.

_ANSWER_SECONDS = 10.0  # Beyond what the server was asked to wait.
_PLANNED_SECONDS = 3600.0
_PLANNED_ANSWER_SECONDS = 1.0  # Meanwhile nobody listens for what matters more.

_FLAVOR = {"Metadata-Flavor": "Google"}
_MIGRATE, _TERMINATE = "MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE"


class _GceKey(PollingSource):
    """Watches a key by long polls, as Google's own guest agent does.

    The first request is answered at once and brings the value and its etag. It also matters by itself: the server
    warns 60 seconds ahead of a maintenance event only if this very key was requested since the last one. Each further
    request is answered when the value changes, or after `poll_seconds`. Requests are at least `least_seconds` apart,
    in case the server does not hold them back.
    """

    name: str
    key: str
    values: tuple[str, ...]

    def __init__(
        self,
        on_notice: OnNotice,
        *,
        address: Address | None = None,
        poll_seconds: float = 60.0,
        least_seconds: float = 0.5,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__(self.name, on_notice, backoff)
        self._client = MetadataClient(address or GCE.address(), self._stopping)
        self._poll_seconds = poll_seconds
        self._least_seconds = least_seconds
        self._etag: str | None = None
        self._last_answer = -math.inf

    def _hear(self, value: str, age: float) -> bool:
        """Takes a value, which may have been there for `age` seconds; returns whether to ask again."""
        raise NotImplementedError

    def _ask(self) -> float | None:
        known, self._etag = self._etag, None  # After a failure, the next request is a first one again.
        due = time.monotonic() + self._least_seconds
        path, timeout = self.key, _ANSWER_SECONDS
        if known is not None:
            seconds = max(1, round(self._poll_seconds))
            wait = {"wait_for_change": "true", "last_etag": known, "timeout_sec": seconds}
            path, timeout = f"{self.key}?{urlencode(wait)}", seconds + _ANSWER_SECONDS
        answer = self._get(path, timeout)
        answer.check_status()
        value, etag = answer.text(), answer.headers.get("etag")
        if value not in self.values:
            raise answer.unexpected(f"one of {', '.join(self.values)}", repr(value[:60]))
        if not etag:
            raise answer.unexpected("an ETag", "none")
        self._etag = etag
        now = time.monotonic()
        age = now - self._last_answer if known is None else 0.0
        self._last_answer = now
        return max(0.0, due - time.monotonic()) if self._hear(value, age) else None

    def _get(self, path: str, timeout: float) -> Answer:
        """The answer about what is below ``/computeMetadata/v1/``, with any status, if it is Google's."""
        answer = self._client.ask(f"/computeMetadata/v1/{path}", headers=_FLAVOR, timeout=timeout)
        flavor = answer.headers.get("metadata-flavor", "none")
        if flavor != "Google":  # A captive portal, or another cloud at the same address.
            raise answer.unexpected("the header Metadata-Flavor: Google", flavor[:60])
        return answer


class GceMaintenance(_GceKey):
    """Listens for host maintenance that ends this machine.

    A migration to another host does not end the machine: it is only logged. A notice of maintenance that is called off,
    or turns into a migration, is withdrawn.

    `lead_seconds` is the time from the announcement to the end of the machine. An announcement that was there before
    the first request counts as old as it can be, but still leaves `MAINTENANCE_LEAD`.
    """

    name = "GCE maintenance"
    key = "instance/maintenance-event"
    values = ("NONE", _MIGRATE, _TERMINATE)

    def __init__(
        self,
        on_notice: OnNotice,
        *,
        on_withdrawn: OnNotice,
        lead_seconds: float = MAINTENANCE_LEAD,
        **options: Any,
    ) -> None:
        super().__init__(on_notice, **options)
        self._on_withdrawn = on_withdrawn
        self._lead_seconds = lead_seconds
        self._value: str | None = None
        self._announced: Notice | None = None
        self._look_for_plans_at = 0.0
        self._planned: str | None = None

    def _hear(self, value: str, age: float) -> bool:
        earlier, self._value = self._value, value
        if value != earlier:
            if value == _TERMINATE:
                now = time.time()
                lead = max(self._lead_seconds - age, min(self._lead_seconds, MAINTENANCE_LEAD))
                identity = f"maintenance-event {self._etag}"
                self._announced = Notice(self.name, _TERMINATE, now, now + lead, id=identity)
                self._on_notice(self._announced)
            elif self._announced is not None:
                withdrawn, self._announced = self._announced, None
                self._on_withdrawn(withdrawn)
            if value == _MIGRATE:
                logger.info(
                    "GCE maintenance: this machine is about to move to another host. Training goes on; a step "
                    "may take longer."
                )
        if time.monotonic() >= self._look_for_plans_at:
            self._look_for_plans_at = time.monotonic() + _PLANNED_SECONDS
            self._look_for_plans()
        return True

    def _look_for_plans(self) -> None:
        """Logs maintenance that is planned for the coming days: worth a line, no reason to stop."""
        path = "instance/upcoming-maintenance?recursive=true&alt=json"
        try:
            answer = self._get(path, _PLANNED_ANSWER_SECONDS)
            if answer.status != 200:
                return  # Most machines have no such key.
            plan = answer.json()
        except MetadataError as error:
            logger.debug("GCE maintenance: what is planned is not known: %s", error)
            return
        # The documentation spells the names both ways.
        start = plan.get("window_start_time", plan.get("windowStartTime"))
        if isinstance(start, str) and start != self._planned:
            self._planned = start
            logger.info("GCE maintenance: planned for this machine from %s on.", start[:60])


class GcePreemption(_GceKey):
    """Listens for the preemption of this machine. It happens once, and is never withdrawn."""

    name = "GCE preemption"
    key = "instance/preempted"
    values = ("TRUE", "FALSE")

    def _hear(self, value: str, age: float) -> bool:
        if value == "TRUE":
            now = time.time()
            self._on_notice(Notice(self.name, "preempted", now, now + PREEMPTION_LEAD, id="preempted"))
        return value == "FALSE"


def _firmware(field: Callable[[str], str]) -> str | None:
    product = field("product_name")
    return product if product.startswith("Google Compute Engine") else None


_GRACE = Grace(30.0, "Compute Engine's for preemptible and Spot machines")

GCE = Cloud(
    "gce",
    variables=(environment.GCE_METADATA_HOST, environment.GCE_METADATA_IP),
    firmware=_firmware,
    probe=Probe(
        "/computeMetadata/v1/instance/id",
        lambda answer: answer.headers.get("metadata-flavor") == "Google",
        _FLAVOR,
    ),
    sources=lambda on_notice, on_withdrawn, lead: (
        GceMaintenance(on_notice, on_withdrawn=on_withdrawn, lead_seconds=lead),
        GcePreemption(on_notice),
    ),
    machines=(
        Row("gce-cpu", EXIT_RESTART_GCE, MAINTENANCE_LEAD, accelerator="none", grace=_GRACE),
        Row("gce-gpu", EXIT_RESTART_GCE, GPU_MAINTENANCE_LEAD, accelerator="gpu", grace=_GRACE),
        Row("gce-tpu", EXIT_RESTART_TPU, MAINTENANCE_LEAD, True, accelerator="tpu", grace=_GRACE),
    ),
)
