"""Where the metadata servers are: at their fixed addresses, or where an environment variable says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from keras_preempt.process import environment

LINK_LOCAL = "169.254.169.254"
"""The address of all three: reachable from the machine itself only, so that no name is looked up."""


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int = 80

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 80 else f"{host}:{self.port}"


def gce_address(variables: Mapping[str, str] = os.environ) -> Address:
    """The metadata server of Google Compute Engine.

    Raises:
        ValueError: The variable that overrides the address holds none.
    """
    return _chosen(variables, environment.GCE_METADATA_HOST, environment.GCE_METADATA_IP)


def aws_address(variables: Mapping[str, str] = os.environ) -> Address:
    """The instance metadata service of Amazon EC2. Raises ValueError as `gce_address` does."""
    return _chosen(variables, environment.AWS_METADATA_ENDPOINT)


def azure_address(variables: Mapping[str, str] = os.environ) -> Address:
    """The instance metadata service of Azure. Raises ValueError as `gce_address` does."""
    return _chosen(variables, environment.AZURE_METADATA_HOST)


def _chosen(variables: Mapping[str, str], *names: str) -> Address:
    for name in names:
        if variables.get(name):
            return parse_address(variables[name], name)
    return Address(LINK_LOCAL)


def parse_address(text: str, name: str) -> Address:
    """Reads ``host``, ``host:port`` or ``http://host:port/``.

    Args:
        text: What to read.
        name: The variable that it comes from, for the message.

    Raises:
        ValueError: It is something else. A path or a password would be dropped silently, and a metadata server
            speaks no https.
    """
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    else:
        if parts.scheme != "http" or parts.path not in ("", "/") or "@" in parts.netloc:
            host = None
        if parts.query or parts.fragment or any(character <= " " for character in text):
            host = None
    if not host:
        raise ValueError(
            f"Expected {name} to be host, host:port or http://host:port. Received: {text!r}. "
            "Correct the variable, or unset it to ask the platform's own address."
        )
    return Address(host, 80 if port is None else port)
