"""Objects that were looked at and are probably opened next: so that what is read is what was looked at."""

from __future__ import annotations

import threading
from collections import OrderedDict

from keras_preempt.checkpoint.storage.gcs_client import ObjectInfo

_MOST = 4096  # objects; older ones are forgotten


class SeenObjects:
    """What was seen of each file when it was last looked at; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._infos: OrderedDict[str, ObjectInfo] = OrderedDict()

    def remember(self, name: str, info: ObjectInfo) -> None:
        """Keeps what was seen of a file."""
        with self._lock:
            self._infos[name] = info
            self._infos.move_to_end(name)
            while len(self._infos) > _MOST:
                self._infos.popitem(last=False)

    def take(self, name: str) -> ObjectInfo | None:
        """Returns what was seen of a file, once."""
        with self._lock:
            return self._infos.pop(name, None)
