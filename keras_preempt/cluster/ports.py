"""Free TCP ports on the loopback interface."""

from __future__ import annotations

import contextlib
import random
import socket

__all__ = ["find_free_ports"]

# Below Linux's default range for outgoing connections (32768 to 60999), so that no connection opened between
# the probe and the worker's own bind can take the port away.
_LOWEST, _HIGHEST = 15_000, 32_000
_ATTEMPTS = 200

_random = random.SystemRandom()


def find_free_ports(count: int) -> list[int]:
    """Returns ``count`` distinct ports of 127.0.0.1 that nobody listens on at the moment.

    Another process can still take one before it is used: callers start over with new ports if a worker
    reports "address already in use".

    Raises:
        OSError: the machine has no free ports left.
    """
    with contextlib.ExitStack() as held:
        return [_probe(held) for _ in range(count)]


def _probe(held: contextlib.ExitStack) -> int:
    """Binds one port and keeps it bound until ``held`` is closed, so that no port is handed out twice."""
    for attempt in range(_ATTEMPTS):
        # The last attempt leaves the choice to the kernel, which fails only when there is nothing left.
        port = 0 if attempt == _ATTEMPTS - 1 else _random.randrange(_LOWEST, _HIGHEST)
        probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            probe.close()
            if port == 0:
                raise
            continue
        held.callback(probe.close)
        return int(probe.getsockname()[1])
    raise AssertionError("unreachable: the last attempt returns or raises")
