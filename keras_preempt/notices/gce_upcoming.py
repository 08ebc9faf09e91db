"""What Google Compute Engine plans for this machine in the coming days: worth a line in the log, no reason to stop."""

from __future__ import annotations

import logging
import time

from keras_preempt.notices.gce_key import ask_gce
from keras_preempt.notices.metadata_address import Address
from keras_preempt.notices.metadata_client import MetadataClient, MetadataError
from keras_preempt.notices.stopping import Stopping

logger = logging.getLogger("keras_preempt")

_LOOK_SECONDS = 3600.0
_ANSWER_SECONDS = 1.0  # Meanwhile nobody listens for what matters more.


class UpcomingMaintenance:
    """Looks now and then whether maintenance is planned, and logs what has not been logged yet.

    Args:
        address: Where the metadata server is.
    """

    def __init__(self, address: Address) -> None:
        self._client = MetadataClient(address)
        self._due = 0.0
        self._logged: str | None = None

    def look(self, stopping: Stopping) -> None:
        """Looks, unless it has looked within the hour. A server that knows nothing of it is fine.

        Raises:
            Stopped: `stopping` was set.
        """
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _LOOK_SECONDS
        try:
            answer = ask_gce(
                self._client,
                "instance/upcoming-maintenance?recursive=true&alt=json",
                stopping,
                timeout=_ANSWER_SECONDS,
            )
            if answer.status != 200:
                return  # Most machines have no such key.
            plan = answer.json()
        except MetadataError as error:
            logger.debug("GCE maintenance: what is planned is not known: %s", error)
            return
        # The documentation spells the names both ways.
        start = plan.get("window_start_time", plan.get("windowStartTime"))
        if isinstance(start, str) and start != self._logged:
            self._logged = start
            logger.info("GCE maintenance: planned for this machine from %s on.", start[:60])
