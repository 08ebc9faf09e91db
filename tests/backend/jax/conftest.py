"""These tests need a process in which Keras runs on JAX: tests/backend/test_on_jax.py starts it, or

KERAS_BACKEND=jax python -m pytest tests/backend/jax
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

ON_JAX = os.environ.get("KERAS_BACKEND") == "jax"
collect_ignore_glob = [] if ON_JAX else ["test_*.py"]

DEVICES = 4

if ON_JAX:
    # Before anything asks JAX for its devices.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(DEVICES))


def model_parallel(*keys: str) -> Any:
    """Divides batches and the variables that the keys match in two; returns the distribution."""
    import keras

    mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"])
    layout = keras.distribution.LayoutMap(mesh)
    for key in keys:
        layout[key] = (None, "model")
    distribution = keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
    keras.distribution.set_distribution(distribution)
    return distribution


@pytest.fixture(scope="session", autouse=True)
def service() -> Iterator[None]:
    """The coordination service of a job of one process, which has to be there before JAX computes anything."""
    import jax

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    jax.distributed.initialize(f"127.0.0.1:{port}", 1, 0)
    yield
    jax.distributed.shutdown()


@pytest.fixture(autouse=True)
def no_distribution(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test sets is not there for the next one. Before Keras 3.10 there is none: see `place.devices_of`."""
    import keras

    set_distribution = keras.distribution.set_distribution
    if not hasattr(keras.distribution.DeviceMesh, "backend_mesh"):

        def skip(distribution: Any) -> None:
            pytest.skip("a distribution is refused with this Keras")

        monkeypatch.setattr(keras.distribution, "set_distribution", skip)
    yield
    set_distribution(None)
