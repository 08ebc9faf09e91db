"""The network of a JobSet's pods on one machine; Python imports this at its start from wherever PYTHONPATH finds it.

Every pod has a loopback address of its own, since all of them listen on the same port, and its name leads there.
"""

from __future__ import annotations

import os
import re
import socket
from typing import Any

_connect, _serve = socket.create_connection, socket.create_server


def _address(pod: str) -> str:
    return f"{os.environ['POD_NETWORK']}.{1 + int(pod)}"


def _create_connection(address: tuple[str, int], *arguments: Any, **named: Any) -> socket.socket:
    host, port = address
    pod = re.fullmatch(r"digits-worker-0-(\d+)\.digits", host)
    return _connect((_address(pod[1]) if pod else host, port), *arguments, **named)


def _create_server(address: tuple[str, int], *arguments: Any, **named: Any) -> socket.socket:
    host, port = address
    return _serve((host or _address(os.environ["JOB_COMPLETION_INDEX"]), port), *arguments, **named)


socket.create_connection, socket.create_server = _create_connection, _create_server  # type: ignore[assignment]
