"""The connections of a storage client, and what happens to them when time runs out.

A request gets its timeouts when it begins. If notice of a preemption comes after that, a request to a service that
has fallen silent would wait as long as was right before, which may be longer than the machine lives. So later requests
wait no longer than the deadline allows, and open connections are watched: one on which no byte moves for a share of
the time left is cut. Its request then fails, and is tried again like any other.

Short read timeouts for all requests could not replace this: what the system still has to send counts against them.
With 3 s, an upload of 7 MB over 1 MB/s was sent eight times.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import requests
import requests.adapters
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from keras_preempt.checkpoint.storage import gcs_errors
from keras_preempt.checkpoint.storage.budget import LAST_CHANCE
from keras_preempt.checkpoint.storage.gcs_retry import timeouts_of_this_try
from keras_preempt.process.threads import started

_POLL = 0.25  # seconds between two looks at the connections
_BYTES_ACKED = (
    120  # offset in Linux's struct tcp_info (linux/tcp.h) of tcpi_bytes_acked, then tcpi_bytes_received
)


class Connections(requests.adapters.HTTPAdapter):
    """The connections of a `requests` session, none of which outlasts the `deadline`; at most `most` are kept open."""

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.deadline: float | None = None
        self._lock = threading.Lock()
        self._this_thread = threading.local()
        self._opened: weakref.WeakSet[Any] = weakref.WeakSet()
        self._watch: threading.Thread | None = None
        self._watch_ends = threading.Event()  # one for each thread
        super().__init__(pool_maxsize=most)

    def keep_to(self, deadline: float | None) -> None:
        """Sets the monotonic seconds by which everything must be over; None for no such moment."""
        with self._lock:
            self.deadline = deadline
            if deadline is not None and self._watch is None:
                self._watch_ends = threading.Event()
                self._watch = started(self._cut_silent, "keras_preempt-gcs-watch", self._watch_ends)

    def end_watch(self) -> None:
        """Ends the thread; the next deadline starts it again."""
        with self._lock:
            thread, self._watch = self._watch, None
            self._watch_ends.set()
        if thread is not None:
            thread.join()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = self._pools()

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*arguments, **options)
        manager.pool_classes_by_scheme = self._pools()
        return manager

    def _pools(self) -> dict[str, Any]:
        """Returns urllib3's pool classes by scheme, changed to register each connection that they open."""

        def known(pool: Any) -> Any:
            kind = pool.ConnectionCls

            def connect(connection: Any) -> None:
                kind.connect(connection)
                with self._lock:
                    self._opened.add(connection)

            return type(
                pool.__name__, (pool,), {"ConnectionCls": type(kind.__name__, (kind,), {"connect": connect})}
            )

        return {"http": known(HTTPConnectionPool), "https": known(HTTPSConnectionPool)}

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        """Sends a request with timeouts that its budget and the deadline allow; called by `requests`."""
        connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
        limits = [timeouts_of_this_try.get()]
        if self.deadline is not None:
            left = self.deadline - self._clock()
            # The first limits the sending of the whole body too, during which the watch detects silence.
            limits.append((max(left, LAST_CHANCE), _patience(left)))
        for limit in limits:
            if limit is not None:
                connect = limit[0] if connect is None else min(connect, limit[0])
                read = limit[1] if read is None else min(read, limit[1])
        response = super().send(request, stream, (connect, read), verify, cert, proxies)
        refused = response.status_code == 401
        self._this_thread.refusal = gcs_errors.told_by(response, response.text) if refused else None
        return response

    def refusal(self) -> str | None:
        """What the service answered this thread's last request, if that was 401; None otherwise."""
        return getattr(self._this_thread, "refusal", None)

    def _cut_silent(self, ends: threading.Event) -> None:
        moved: dict[int, tuple[int, float]] = {}  # by descriptor: bytes so far, and since when no more
        while not ends.wait(_POLL):
            with self._lock:
                deadline, now = self.deadline, self._clock()
                # What is still under way a moment after the deadline has had its last chance.
                is_over = deadline is None or now > deadline + LAST_CHANCE
                if is_over:
                    self._watch = None
                sockets = [connection.sock for connection in self._opened if connection.sock is not None]
            if deadline is None:
                return
            before, moved = moved, {}
            for each in sockets:
                with contextlib.suppress(OSError):  # It is closed by now.
                    count, since = before.get(each.fileno(), (None, now))
                    found = _bytes_moved(each)
                    if is_over or (
                        found is not None and found == count and now - since > _patience(deadline - now)
                    ):
                        each.shutdown(socket.SHUT_RDWR)  # It ends every wait on it; its owner closes it.
                    elif found is not None:
                        moved[each.fileno()] = found, since if found == count else now
            if is_over:
                return


def _patience(left: float) -> float:
    """Returns how many seconds of silence to accept if so many are left."""
    return max(left / 3, LAST_CHANCE)


def _bytes_moved(each: socket.socket) -> int | None:
    """Returns how many bytes the other end has received or sent; None if the system does not tell."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    facts = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return None if len(facts) < _BYTES_ACKED + 16 else sum(struct.unpack_from("=QQ", facts, _BYTES_ACKED))
