"""When this process started, and its name: a report shows how long it took until `fit`, and whether it is alive."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from types import ModuleType

from keras_preempt import __version__

_LOADED_AT = time.time()


def started_at() -> float:
    """When this process started, in seconds since 1970; if the system does not say, when this module was loaded.

    One that was a standby started when it became a worker.
    """
    pid, became = getattr(_standby(), "began", None) or (0, 0.0)
    if pid == os.getpid():
        return float(became)
    ticks = _start_ticks(os.getpid())
    if ticks is None:
        return _LOADED_AT
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def imports_told() -> dict[str, object]:
    """Returns what the script has imported, for the launcher that prepares the next start, if it is known.

    From then on a process that was a standby never starts its script again.
    """
    if (standby := _standby()) is None:
        return {"pid": os.getpid()}
    told: dict[str, object] = standby.told()
    return told


def name() -> dict[str, str | int | None]:
    """What distinguishes this process from all others, as JSON: "machine", "pid", and "ticks" at its start."""
    return {"machine": machine(), "pid": os.getpid(), "ticks": _start_ticks(os.getpid())}


def machine() -> str:
    """Names the PID namespace of this process: the machine since it booted, and the container."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            boot = stream.read().strip()
    except OSError:
        boot = ""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{socket.gethostname()}:{boot}:{namespace}"


def versions() -> dict[str, str]:
    """The versions of Python and of this package."""
    return {"python": platform.python_version(), "keras_preempt": __version__}


def is_alive(told: object) -> bool | None:
    """Whether the process in which `name` returned `told` is alive; None if that cannot be known here."""
    if not isinstance(told, dict):
        return None
    pid, ticks = told.get("pid"), told.get("ticks")
    if not isinstance(pid, int) or isinstance(pid, bool) or not 0 < pid < 1 << 31:
        return None
    if ticks is None or told.get("machine") != machine():
        return None
    return bool(_start_ticks(pid) == ticks)


def _start_ticks(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process; None if it is not there, or a zombie. See proc(5)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            # The name of the program is in brackets, and may contain spaces and brackets itself.
            fields = stream.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] == b"Z" else int(fields[19])


def _standby() -> ModuleType | None:
    """The part of `cluster/standby_site` in this process, if it was started with it."""
    return sys.modules.get("_keras_preempt_standby")
