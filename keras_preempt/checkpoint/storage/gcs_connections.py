"""The connections of a storage client, and what happens to them when time runs out.

A request gets its timeouts when it begins. If notice of a preemption comes after that, a request to a service that
has fallen silent would wait as long as was right before, which may be longer than the machine lives. So requests that
begin later wait no longer than the deadline allows, and connections in use are watched: one on which nothing moves for
a share of the time that is left is cut. Its request then fails, and is tried again like any other.
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
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from keras_preempt.checkpoint.storage import gcs_errors
from keras_preempt.checkpoint.storage.budget import LAST_CHANCE, timeouts_of_this_try
from keras_preempt.process.threads import started

_LOOK = 0.25  # seconds between two looks at the connections
_BYTES_ACKED = (
    120  # where Linux's struct tcp_info (linux/tcp.h) has tcpi_bytes_acked and then tcpi_bytes_received
)


def patience(left: float) -> float:
    """Returns how many seconds of silence to bear if so many are left."""
    return max(left / 3, LAST_CHANCE)


class Connections(requests.adapters.HTTPAdapter):
    """The connections of a `requests` session, all of them known, and none that outlasts the deadline.

    Args:
        most: Connections that are kept open.
        deadline: Returns the monotonic seconds at which everything must be over, None for no such moment.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self, most: int, deadline: Callable[[], float | None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._deadline = deadline
        self._clock = clock
        self._lock = threading.Lock()
        self._unauthorized = threading.local()
        self._opened: weakref.WeakSet[Any] = weakref.WeakSet()
        super().__init__(pool_maxsize=most)

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        """Makes the pools of connections; called by `requests`."""
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = _pools_of(self._add)

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        """Makes the pools of connections through a proxy; called by `requests`."""
        manager = super().proxy_manager_for(*arguments, **options)
        manager.pool_classes_by_scheme = _pools_of(self._add)
        return manager

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        """Sends a request with no longer timeouts than its budget and the deadline allow; called by `requests`."""
        connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
        allowed = timeouts_of_this_try()
        if allowed is not None:
            timeout = connect, read = _shorter(connect, allowed[0]), _shorter(read, allowed[1])
        deadline = self._deadline()
        if deadline is not None:
            left = deadline - self._clock()
            # The first limits the sending of the whole body too, during which the watch detects silence.
            timeout = _shorter(connect, max(left, LAST_CHANCE)), _shorter(read, patience(left))
        response = super().send(request, stream, timeout, verify, cert, proxies)
        self._unauthorized.told = gcs_errors.told_by(response) if response.status_code == 401 else None
        return response

    def unauthorized(self) -> str | None:
        """What this thread's last request was told, if that was 401; None otherwise."""
        return getattr(self._unauthorized, "told", None)

    def _add(self, connection: Any) -> None:
        with self._lock:
            self._opened.add(connection)

    def open(self) -> list[socket.socket]:
        """Returns the sockets that are open, in use or not."""
        with self._lock:
            sockets = [connection.sock for connection in self._opened]
        return [each for each in sockets if each is not None]


class SilenceWatch:
    """Cuts connections on which nothing moves, from the moment at which there is a deadline until it is over.

    Without a deadline it does nothing and has no thread.

    Args:
        sockets: Returns the sockets that are open.
        deadline: Returns the monotonic seconds at which everything must be over, None for no such moment.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        sockets: Callable[[], list[socket.socket]],
        deadline: Callable[[], float | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sockets = sockets
        self._deadline = deadline
        self._clock = clock
        self._lock = threading.Lock()
        self._ended = threading.Event()  # one for each thread
        self._thread: threading.Thread | None = None

    def deadline_changed(self) -> None:
        """Begins to watch if there is a deadline now."""
        with self._lock:
            if self._deadline() is None or self._thread is not None:
                return
            self._ended = threading.Event()
            self._thread = started(self._run, "keras_preempt-gcs-watch", self._ended)

    def close(self) -> None:
        """Ends the thread; `deadline_changed` starts it again."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._ended.set()
        if thread is not None:
            thread.join()

    def _run(self, ended: threading.Event) -> None:
        moved: dict[int, tuple[int, float]] = {}  # by descriptor: bytes so far, and since when no more
        while not ended.wait(_LOOK):
            with self._lock:
                deadline = self._deadline()
                left = 0.0 if deadline is None else deadline - self._clock()
                if deadline is None or left < -LAST_CHANCE:
                    self._thread = None
                    break
            moved = self._look(moved, patience(left))
        else:
            return
        if deadline is not None:
            for each in self._sockets():  # What is still under way has had its last chance.
                _cut(each)

    def _look(self, before: dict[int, tuple[int, float]], longest: float) -> dict[int, tuple[int, float]]:
        moved = {}
        time_now = self._clock()
        for each in self._sockets():
            count = _bytes_moved(each)
            if count is None:
                continue
            known, since = before.get(each.fileno(), (-1, time_now))
            if count != known:
                since = time_now
            elif time_now - since > longest:
                _cut(each)
                continue
            moved[each.fileno()] = count, since
        return moved


def _shorter(asked: float | None, longest: float) -> float:
    return longest if asked is None else min(asked, longest)


def _bytes_moved(each: socket.socket) -> int | None:
    """Returns how many bytes the other end has received or sent; None if the system does not tell."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    try:
        facts = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        received, sent = struct.unpack_from("=QQ", facts, _BYTES_ACKED)
    except (OSError, struct.error):  # It is closed by now, or the system is an older one.
        return None
    return int(received + sent)


def _cut(each: socket.socket) -> None:
    """Ends every wait on a socket; its owner closes it."""
    with contextlib.suppress(OSError):  # It is closed by now.
        each.shutdown(socket.SHUT_RDWR)


def _pools_of(opened: Callable[[Any], None]) -> dict[str, Any]:
    """Returns urllib3's classes of pools, by scheme, whose connections are reported when they are opened."""

    class Plain(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            opened(self)

    class Secure(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            opened(self)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}
