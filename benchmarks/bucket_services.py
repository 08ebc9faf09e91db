"""The services whose buckets the benchmarks save to, each by a fake in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.testing.gcs.fake import QUIET_CLIENT

BUCKET = "bucket"
END_TIMEOUT = 20.0  # seconds until a process that was told to end has ended


@dataclass(frozen=True)
class Service:
    """A service and its fake.

    Attributes:
        scheme: Of its URLs.
        fake: The module that serves it.
        environment: Returns the variables by which clients find the fake, given its address.
    """

    scheme: str
    fake: str
    environment: Callable[[str], dict[str, str]]

    def store(self, folder: str, connections: int) -> Store:
        """Returns the store of a folder in the bucket, with a number of connections."""
        return store_of(f"{self.scheme}://{BUCKET}/{folder}", connections)

    @contextmanager
    def server(self, *, connection: float, machine: float | None = None) -> Iterator[str]:
        """Runs the fake; returns its address, and leads all clients to it.

        Args:
            connection: Bytes a second of one connection, in each direction.
            machine: Bytes a second of one machine's connections together; None for no limit.
        """
        command = [sys.executable, "-m", self.fake, "--bytes-per-second", str(connection)]
        if machine is not None:
            command += ["--machine-bytes-per-second", str(machine)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                endpoint = process.stdout.readline().strip()
                if not endpoint:
                    raise RuntimeError("Expected the address of a fake bucket. Received: nothing; see above.")
                os.environ.update(self.environment(endpoint))
                yield endpoint
            finally:
                process.terminate()
                process.wait(END_TIMEOUT)
