"""Every process of a job keeps what it compiles, where each has a folder of its own.

JAX writes compiled programs in process 0 alone, since all may share one folder in a bucket (`_cache_write`). The others
load what process 0 has written if all run the same program; but what a process runs alone, as the programs that
initialize its variables, has its devices in its name on CPUs and TPUs, and is compiled anew in each start. Under the
launcher nothing is shared, and every process writes.

Verified with JAX 0.6.0 to 0.12.0.1; tests/backend/jax/test_canaries.py has a canary for each private name. With a JAX
that has not got them nothing is changed: then restarts compile more.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
from pathlib import Path
from typing import Any

import jax

from keras_preempt.process.environment import JAX_CACHE, STATUS_DIR

_WRITE, _PUT = "_cache_write", "put_executable_and_time"
_WRITTEN = ("cache_key", "compile_time_secs", "module_name", "backend", "executable")
"""What `_cache_write` is given. JAX before 0.12 adds the program's calls of Python, and keeps no program with any."""


def keep_by_every_process() -> None:
    """Called before the first program is compiled; can be called again."""
    status, place = os.environ.get(STATUS_DIR), os.environ.get(JAX_CACHE)
    if not status or not place or Path(status).parent not in Path(place).parents:
        return  # It was not started by the launcher, or the user has chosen a folder that all may share.
    with contextlib.suppress(ImportError, AttributeError):
        compiler = importlib.import_module("jax._src.compiler")
        put = getattr(importlib.import_module("jax._src.compilation_cache"), _PUT)
        write = getattr(compiler, _WRITE)
        if not hasattr(write, "__wrapped__") and _takes_what_is_known(write):
            setattr(compiler, _WRITE, _by_every_process(write, put))


def _takes_what_is_known(write: Any) -> bool:
    return (*inspect.signature(write).parameters,) in (_WRITTEN, (*_WRITTEN, "host_callbacks"))


def _by_every_process(write: Any, put: Any) -> Any:
    @functools.wraps(write)
    def written(
        key: str, seconds: float, name: str, backend: Any, executable: Any, *host_callbacks: Any
    ) -> None:
        if jax.process_index() == 0:
            write(key, seconds, name, backend, executable, *host_callbacks)
        elif not any(host_callbacks) and seconds >= jax.config.jax_persistent_cache_min_compile_time_secs:
            with contextlib.suppress(Exception):  # A program that is not kept is compiled again.
                put(key, name, executable, backend, int(seconds))

    return written
