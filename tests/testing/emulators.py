"""Emulators of S3 and Azure that others wrote, against which the fakes are held: moto in this process, and Azurite."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

AZURITE = "KERAS_PREEMPT_AZURITE"
"""The variable that names the program `azurite-blob`, or Azurite's main.js; without it, it is looked for in PATH."""

_LISTENS = re.compile(r"successfully listens on (http://127\.0\.0\.1:\d+)")
_STARTING = 60.0  # seconds


@contextmanager
def moto_endpoint() -> Iterator[str]:
    """Runs moto's server; it takes requests one by one in a thread of this process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def azurite_command() -> list[str] | None:
    """How to start Azurite's blob service; None if it is not there."""
    named = os.environ.get(AZURITE) or shutil.which("azurite-blob") or shutil.which("azurite")
    if named is None:
        return None
    if named.endswith(".js"):
        return None if (node := shutil.which("node")) is None else [node, named]
    return [named, "--queuePort", "0", "--tablePort", "0"] if Path(named).name == "azurite" else [named]


@contextmanager
def azurite_endpoint(account: str, key: str) -> Iterator[str]:
    """Runs Azurite with one account; gives the endpoint of that account. Skips a test where it is not installed."""
    command = azurite_command()
    if command is None:
        pytest.skip(f"Azurite is not installed: npm install azurite, and set {AZURITE} to its main.js")
    options = ["--inMemoryPersistence", "--blobPort", "0", "--skipApiVersionCheck", "--disableTelemetry"]
    process = subprocess.Popen(
        [*command, *options],
        env={**os.environ, "AZURITE_ACCOUNTS": f"{account}:{key}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := _LISTENS.search(line):
                yield f"{found[1]}/{account}"
                break
        else:
            pytest.fail("Azurite ended before it listened")
    finally:
        process.terminate()
        process.communicate(timeout=_STARTING)
