"""Notices of Google Compute Engine: host maintenance, and preemption of Spot and preemptible machines.

Two keys, and a source with a thread for each. One long poll on all of ``instance/`` would bring both, but also the
start-up script, SSH keys and whatever else somebody has stored there, of any size, on every change of any of them; and
only those who ask for the maintenance key itself are promised a warning ahead of maintenance.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection
from typing import NamedTuple
from urllib.parse import urlencode

from keras_preempt.notices.cloud import Cloud, Grace, Question, Row
from keras_preempt.notices.metadata_client import Address, Answer, MetadataClient, MetadataError
from keras_preempt.notices.notice import Notice
from keras_preempt.notices.source_thread import AskingSource, Backoff
from keras_preempt.notices.stopping import Stopping
from keras_preempt.process import environment
from keras_preempt.process.exit_codes import EXIT_RESTART_GCE, EXIT_RESTART_TPU

logger = logging.getLogger("keras_preempt")

MAINTENANCE_LEAD = 60.0
"""Seconds from the announcement of host maintenance to the end of a machine without GPUs."""

GPU_MAINTENANCE_LEAD = 3600.0
"""The same for a machine with GPUs, which is never migrated.

Source of both: cloud.google.com/compute/docs/gpus/gpu-host-maintenance.
"""

PREEMPTION_LEAD = 30.0
"""Seconds from the announcement of a preemption to the end of the machine."""

_POLL_SECONDS = 60.0
_LEAST_SECONDS = 0.5
_ANSWER_SECONDS = 10.0  # Beyond what the server was asked to wait.
_PLANNED_SECONDS = 3600.0
_PLANNED_ANSWER_SECONDS = 1.0  # Meanwhile nobody listens for what matters more.

_FLAVOR = {"Metadata-Flavor": "Google"}
_NONE, _MIGRATE, _TERMINATE = "NONE", "MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE"


class GceMaintenance(AskingSource):
    """Listens for host maintenance that ends this machine, from `start` until `stop`.

    A migration to another host does not end the machine: it is only logged. A notice of maintenance that is called off,
    or turns into a migration, is withdrawn.

    Args:
        on_notice: Called in the source's thread with each notice.
        on_withdrawn: Called in the source's thread with a notice that does not hold any more.
        lead_seconds: From the announcement to the end of the machine, in seconds: `GPU_MAINTENANCE_LEAD` on a
            machine with GPUs. An announcement that was there before it could be heard, nobody knows for how long,
            is taken to be as old as it can be, but still to leave `MAINTENANCE_LEAD`.
        address: Where the metadata server is; None to go by the environment.
        poll_seconds: How long one question may stay open, in seconds.
        least_seconds: The shortest time between two questions, in seconds.
        backoff: How long to wait after failures.

    Raises:
        ValueError: A variable that names the server's address holds none.
    """

    def __init__(
        self,
        on_notice: Callable[[Notice], None],
        *,
        on_withdrawn: Callable[[Notice], None],
        lead_seconds: float = MAINTENANCE_LEAD,
        address: Address | None = None,
        poll_seconds: float = _POLL_SECONDS,
        least_seconds: float = _LEAST_SECONDS,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__("GCE maintenance", on_notice, backoff)
        self._on_withdrawn = on_withdrawn
        self._lead_seconds = lead_seconds
        self._client = MetadataClient(address or GCE.address())
        self._key = GceKey(
            self._client,
            "instance/maintenance-event",
            (_NONE, _MIGRATE, _TERMINATE),
            poll_seconds=poll_seconds,
            least_seconds=least_seconds,
        )
        self._value: str | None = None
        self._announced: Notice | None = None
        self._look_for_plans_at = 0.0
        self._planned: str | None = None

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
        if time.monotonic() >= self._look_for_plans_at:
            self._look_for_plans_at = time.monotonic() + _PLANNED_SECONDS
            self._look_for_plans(stopping)
        return self._key.pause

    def _announce(self, reading: Reading) -> None:
        now = time.time()
        lead = max(self._lead_seconds - reading.age, min(self._lead_seconds, MAINTENANCE_LEAD))
        identity = f"maintenance-event {reading.etag}"
        self._announced = Notice("GCE maintenance", _TERMINATE, now, now + lead, id=identity)
        self._on_notice(self._announced)

    def _look_for_plans(self, stopping: Stopping) -> None:
        """Logs maintenance that is planned for the coming days: worth a line, no reason to stop."""
        try:
            answer = ask_gce(
                self._client,
                "instance/upcoming-maintenance?recursive=true&alt=json",
                stopping,
                timeout=_PLANNED_ANSWER_SECONDS,
            )
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


class GcePreemption(AskingSource):
    """Listens for the preemption of this machine, from `start` until `stop`. It happens once, and is never withdrawn.

    Args:
        on_notice: Called in the source's thread with the notice.
        address: Where the metadata server is; None to go by the environment.
        poll_seconds: How long one question may stay open, in seconds.
        least_seconds: The shortest time between two questions, in seconds.
        backoff: How long to wait after failures.

    Raises:
        ValueError: A variable that names the server's address holds none.
    """

    def __init__(
        self,
        on_notice: Callable[[Notice], None],
        *,
        address: Address | None = None,
        poll_seconds: float = _POLL_SECONDS,
        least_seconds: float = _LEAST_SECONDS,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__("GCE preemption", on_notice, backoff)
        self._key = GceKey(
            MetadataClient(address or GCE.address()),
            "instance/preempted",
            ("TRUE", "FALSE"),
            poll_seconds=poll_seconds,
            least_seconds=least_seconds,
        )

    def _ask(self, stopping: Stopping) -> float | None:
        if self._key.next(stopping).value == "FALSE":
            return self._key.pause
        now = time.time()
        self._on_notice(Notice("GCE preemption", "preempted", now, now + PREEMPTION_LEAD, id="preempted"))
        return None


def ask_gce(
    client: MetadataClient, path: str, stopping: Stopping, *, timeout: float = _ANSWER_SECONDS
) -> Answer:
    """Asks for something below ``/computeMetadata/v1/``; the answer may have any status.

    Raises:
        MetadataError: There is no answer, or it is not Google's.
        Stopped: `stopping` was set.
    """
    answer = client.ask(f"/computeMetadata/v1/{path}", stopping, headers=_FLAVOR, timeout=timeout)
    if not _is_googles(answer):  # A captive portal, or another cloud at the same address.
        flavor = answer.headers.get("metadata-flavor", "none")
        raise answer.unexpected("the header Metadata-Flavor: Google", flavor[:60])
    return answer


def _is_googles(answer: Answer) -> bool:
    return answer.headers.get("metadata-flavor") == "Google"


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
    """A key that is watched by long polls, as Google's own guest agent does it: its changes are told as they happen.

    The first question is answered at once and brings the value and its etag. It also matters by itself: the server
    warns 60 seconds ahead of a maintenance event only if somebody has asked for this very key since the last one.
    Each further question is answered when the value is another one, or after `poll_seconds`.

    Args:
        client: Asks the server.
        path: The key, below ``/computeMetadata/v1/``.
        values: What it can hold.
        poll_seconds: How long the server may hold back an answer.
        least_seconds: The shortest time between two questions, should the server not hold them back at all.
    """

    def __init__(
        self,
        client: MetadataClient,
        path: str,
        values: Collection[str],
        *,
        poll_seconds: float,
        least_seconds: float,
    ) -> None:
        self._client = client
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


def _firmware(field: Callable[[str], str]) -> str | None:
    product = field("product_name")
    return product if product.startswith("Google Compute Engine") else None


_GRACE = Grace(30.0, "Compute Engine's for preemptible and Spot machines")

GCE = Cloud(
    "gce",
    variables=(environment.GCE_METADATA_HOST, environment.GCE_METADATA_IP),
    firmware=_firmware,
    question=Question("/computeMetadata/v1/instance/id", _is_googles, headers=_FLAVOR),
    sources=lambda on_notice, on_withdrawn, lead: (
        GceMaintenance(on_notice, on_withdrawn=on_withdrawn, lead_seconds=lead),
        GcePreemption(on_notice),
    ),
    machines=(
        Row("gce-cpu", EXIT_RESTART_GCE, MAINTENANCE_LEAD, accelerator="none", grace=_GRACE),
        Row("gce-gpu", EXIT_RESTART_GCE, GPU_MAINTENANCE_LEAD, accelerator="gpu", grace=_GRACE),
        Row(
            "gce-tpu",
            EXIT_RESTART_TPU,
            MAINTENANCE_LEAD,
            waits_for_workers=True,
            accelerator="tpu",
            grace=_GRACE,
        ),
    ),
)
