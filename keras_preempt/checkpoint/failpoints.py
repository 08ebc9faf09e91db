"""Named points at which a crash test interrupts a save or a restore.

A claim such as "killed at any moment, the last checkpoint survives" is worth something only if a process really is
killed at that moment. The package calls `point(name)` at the moments that matter; the environment
variable ``KERAS_PREEMPT_FAILPOINTS``, read once when this module is imported, says what happens there::

    KERAS_PREEMPT_FAILPOINTS="save.before-manifest=kill,save.between-parts=raise:2"

Each entry is ``<name>=<action>`` or ``<name>=<action>:<n>``; it acts once, at the n-th time that the process
passes the point (the first by default). Names are those in `NAMES`. Actions:

- ``kill``: SIGKILL to this process; nothing is cleaned up.
- ``raise``: raises `OSError`, as a failing disk would.
- ``sigterm``: SIGTERM to this process; it continues.
- ``stop``: SIGSTOP to this process, until it gets SIGCONT.

Without the variable a point costs two comparisons.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

VARIABLE = "KERAS_PREEMPT_FAILPOINTS"
"""Name of the environment variable that arms failpoints."""

NAMES = (
    "save.before-parts",
    "save.between-parts",
    "save.before-part-list",
    "save.after-part",
    "save.before-manifest",
    "save.after-manifest",
    "restore.before-read",
    "restore.after-read",
    "restore.in-exchange",
)
"""Every point there is, in the order in which a save and then a restore pass them."""

_SIGNALS = {"kill": signal.SIGKILL, "sigterm": signal.SIGTERM, "stop": signal.SIGSTOP}
_ACTIONS = (*_SIGNALS, "raise")

_hits: dict[str, int] = {}
_hits_lock = threading.Lock()
_hooks: dict[str, Callable[[], None]] = {}


Armed = tuple[str, int]
"""What happens at one point: an action, and at which time that it is passed, counted from 1."""


def parse_failpoints(text: str) -> dict[str, Armed]:
    """Parses comma-separated ``<name>=<action>[:<n>]`` entries; returns what is armed, by name of the point.

    Raises `ValueError` if an entry is malformed, names no known point or action, or names a point twice.
    """
    armed: dict[str, Armed] = {}
    for entry in text.split(","):
        name, equals, wanted = entry.strip().partition("=")
        action, colon, count = wanted.partition(":")
        hit = count if colon else "1"
        if not equals or not (hit.isascii() and hit.isdigit() and int(hit) > 0):
            raise ValueError(
                f"Expected {VARIABLE} to hold comma-separated <name>=<action> or <name>=<action>:<n> entries "
                f"with n >= 1. Received: {entry!r} in {text!r}. Correct the entry or unset the variable."
            )
        if name not in NAMES:
            raise ValueError(
                f"Expected {VARIABLE} to name points out of {', '.join(NAMES)}. Received: {name!r}. "
                "Correct the name or unset the variable."
            )
        if action not in _ACTIONS:
            raise ValueError(
                f"Expected {VARIABLE} to give {name} an action out of {', '.join(_ACTIONS)}. "
                f"Received: {action!r}. Correct the action or unset the variable."
            )
        if name in armed:
            raise ValueError(
                f"Expected {VARIABLE} to name each point once. Received: {name} twice in {text!r}. "
                "Remove one of the two."
            )
        armed[name] = action, int(hit)
    return armed


_ARMED: dict[str, Armed] | None = parse_failpoints(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def point(name: str) -> None:
    """Does what the environment asks for at the point `name`, one of `NAMES`: nothing, as a rule."""
    if _hooks and (act := _hooks.get(name)) is not None:
        act()
    if _ARMED is None:
        return
    armed = _ARMED.get(name)
    if armed is None:
        return
    action, acts_at = armed
    with _hits_lock:
        hit = _hits[name] = _hits.get(name, 0) + 1
    if hit != acts_at:
        return
    if action == "raise":
        raise OSError(f"failpoint {name} was armed to raise by {VARIABLE}")
    os.kill(os.getpid(), _SIGNALS[action])


def set_hook(name: str, act: Callable[[], None]) -> None:
    """Calls `act` whenever this process passes the point `name`, in whatever thread does, until `clear_hook`."""
    if name not in NAMES:
        raise ValueError(f"Expected the name of a point out of {', '.join(NAMES)}. Received: {name!r}.")
    _hooks[name] = act


def clear_hook(name: str) -> None:
    """Ends `set_hook`."""
    _hooks.pop(name, None)
