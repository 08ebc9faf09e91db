"""TensorFlow's description of a cluster whose machines are known by name."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

__all__ = ["DEFAULT_PORT", "tf_config_from_hosts", "tf_config_of"]

DEFAULT_PORT = 2222
"""The port that TensorFlow's own examples use. Nothing else may listen there on any of the machines."""


def tf_config_of(addresses: Sequence[str], index: int) -> dict[str, Any]:
    """What TF_CONFIG says to the worker at `addresses[index]`."""
    return {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": index}}


def tf_config_from_hosts(
    hosts: Sequence[str], host: str | None = None, *, port: int = DEFAULT_PORT
) -> dict[str, Any]:
    """The TF_CONFIG of this machine in a cluster of machines with fixed names, one worker on each.

    Args:
        hosts: The machines by name, in the same order on all of them.
        host: This machine. None: the name that the system gives itself. A machine that knows itself by its short
            name is found in a list of full ones, and the other way round.
        port: Where the workers listen.

    Returns:
        What `json.dumps` makes a TF_CONFIG of, for `os.environ` before the strategy is made.

    Raises:
        ValueError: A machine is named twice, or this one is not there.

    Example:
        >>> tf_config_from_hosts(["a.internal", "b.internal"], "b")["task"]
        {'type': 'worker', 'index': 1}
    """
    here = socket.gethostname() if host is None else host
    if isinstance(hosts, str) or len(set(hosts)) != len(hosts):
        raise ValueError(f"Expected the names of machines, each once. Received: {hosts!r}.")
    found = [index for index, name in enumerate(hosts) if name == here] or [
        index for index, name in enumerate(hosts) if name.split(".")[0] == here.split(".")[0]
    ]
    if len(found) != 1:
        raise ValueError(
            f"Expected this machine, {here!r}, to be one of the workers. Received: {list(hosts)}. "
            "Give host= the name that the list has for it."
        )
    return tf_config_of([f"{name}:{port}" for name in hosts], found[0])
