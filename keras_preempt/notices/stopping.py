"""A way to stop a thread wherever it waits: between two requests, or inside one."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time


class Stopped(Exception):
    """The waiting thread has been told to stop."""


class Stopping:
    """Tells one thread to stop.

    An event alone would not do: it does not wake a thread that waits for a socket, and closing a socket does not wake
    its reader. So this goes through a pipe that every wait watches too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._set = False
        self._reader, self._writer = os.pipe()

    @property
    def is_set(self) -> bool:
        """Whether the thread is to stop."""
        return self._set

    def set(self) -> None:
        """Tells the thread to stop. Can be called again, and after `close`."""
        with self._lock:
            if not self._set and not self._closed:
                os.write(self._writer, b"s")
            self._set = True

    def wait(self, seconds: float) -> None:
        """Waits, in the thread.

        Args:
            seconds: How long.

        Raises:
            Stopped: The thread is to stop.
        """
        with contextlib.suppress(TimeoutError):
            self.wait_for(None, 0, time.monotonic() + seconds)

    def wait_for(self, connection: socket.socket | None, events: int, deadline: float) -> None:
        """Waits until a socket is ready.

        Args:
            connection: The socket; None to wait for the deadline alone.
            events: What to wait for: select.POLLIN or select.POLLOUT.
            deadline: Until when, in monotonic seconds.

        Raises:
            Stopped: The thread is to stop.
            TimeoutError: The deadline has passed.
        """
        poller = select.poll()
        poller.register(self._reader, select.POLLIN)
        if connection is not None:
            poller.register(connection, events)
        left = deadline - time.monotonic()
        ready = [descriptor for descriptor, _ in poller.poll(max(0.0, left) * 1000)]
        if self._reader in ready:
            raise Stopped
        if not ready or left <= 0:
            # Even when there is something to read: a server that sends a byte now and then must not go on for ever.
            raise TimeoutError("timed out")

    def close(self) -> None:
        """Closes the pipe; only the thread that waits may call this, once it waits no more."""
        with self._lock:
            self._closed = True
            os.close(self._reader)
            os.close(self._writer)
