"""The services whose buckets the benchmarks save to: their fakes, and our stores of them."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keras_preempt import testing
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.checkpoint.storage.store import Store

BUCKET = "bucket"
FAKES = {"gs": "FakeGcs", "s3": "FakeS3", "az": "FakeAzure"}
"""By the scheme of a service: the fake in `keras_preempt.testing`."""

SCRIPTS = Path(__file__).parent / "scripts"
END_TIMEOUT = 20.0  # seconds until a process that was told to end has ended


def store_of(scheme: str, folder: str, connections: int) -> Store:
    """Returns our store of a folder in the bucket of a service, with a number of connections."""
    url = f"{scheme}://{BUCKET}/{folder}"
    kind: Any = type(open_store(url))
    store: Store = kind(url, connections=connections)
    return store


def store_on_machine(scheme: str, folder: str, connections: int, machine: str) -> Store:
    """Returns the same with a User-Agent, by which the fake knows which machine a connection comes from."""
    if scheme == "gs":
        from google.api_core.client_info import ClientInfo
        from google.cloud import storage

        from keras_preempt.checkpoint.storage.gcs import GcsStore

        def connect() -> Any:
            return storage.Client(project=None, client_info=ClientInfo(user_agent=machine))

        return GcsStore(f"gs://{BUCKET}/{folder}", connect=connect, connections=connections)
    module = importlib.import_module(type(open_store(f"{scheme}://{BUCKET}/{folder}")).__module__)
    options = module.client_options
    setattr(module, options.__name__, lambda *given: {**options(*given), "user_agent": machine})
    return store_of(scheme, folder, connections)


@contextmanager
def served_here(scheme: str, **limits: Any) -> Iterator[Any]:
    """Runs the fake of a service in this process, and leads all clients to it.

    Args:
        scheme: Of the service.
        limits: Those of the fake, such as ``bytes_per_second``.
    """
    with getattr(testing, FAKES[scheme])((BUCKET,), **limits) as fake:
        os.environ.update(fake.environment())
        yield fake


@contextmanager
def served(scheme: str, **limits: float) -> Iterator[None]:
    """Does the same with a process of its own for the fake."""
    command = [sys.executable, str(SCRIPTS / "bucket_server.py"), scheme, json.dumps(limits)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("Expected the variables of a fake bucket. Received: nothing; see above.")
            os.environ.update(json.loads(line))
            yield
        finally:
            process.terminate()
            process.wait(END_TIMEOUT)
