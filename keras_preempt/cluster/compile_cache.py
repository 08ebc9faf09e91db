"""Where the workers of a launcher keep compiled programs from one start to the next."""

from __future__ import annotations

import os
from pathlib import Path

from keras_preempt.process.environment import JAX_CACHE, JAX_CACHE_ENABLED, JAX_CACHE_LEAST_SECONDS


def compile_cache(root: Path, worker: int) -> dict[str, str]:
    """The variables by which JAX keeps below `root` what it compiles; none if the user has chosen a place, or none.

    JAX names each program by a hash of its text, the compiler, its options and the devices. Every worker has a folder,
    since JAX writes its files in place, where another worker could read half of one.
    """
    if JAX_CACHE in os.environ or os.environ.get(JAX_CACHE_ENABLED, "1").lower() in (
        "0",
        "false",
        "no",
        "off",
    ):
        return {}
    return {
        JAX_CACHE: str(root / "compiled" / f"w{worker}"),
        JAX_CACHE_LEAST_SECONDS: os.environ.get(JAX_CACHE_LEAST_SECONDS, "0"),
    }
