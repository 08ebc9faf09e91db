"""The directories that a drill gives to a script in place of its own.

A drilled script runs as it is, with as many `PreemptionCallback`s and directories as it has. In every start of the
script, two callbacks with the same directory must get the same one, and two with different directories different ones.
So a directory below the drill's is named after the script's own, and not after the order in which callbacks are made.
"""

from __future__ import annotations

import hashlib
import os
import re

from keras_preempt.process import environment

_LONGEST = 40
"""Characters of the user's own name that a place keeps, for people who look at it."""

_given: dict[str, str] = {}


def drill_directory(
    wanted: str | os.PathLike[str], root: str, started_in: str | None
) -> str | os.PathLike[str]:
    """Returns the directory below the drill's that is used instead of a script's own, relative to `started_in`."""
    text = os.fspath(wanted)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        return wanted  # Refused with the words of whoever checks it.
    if "://" in text:
        name = text.rstrip("/")
    else:
        name = os.path.realpath(os.path.expanduser(text))
        if started_in is not None and name.startswith(f"{os.path.realpath(started_in)}{os.sep}"):
            name = os.path.relpath(name, os.path.realpath(started_in))
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", name.rpartition("/")[2]).strip(".-")[:_LONGEST] or "run"
    place = f"{readable}-{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:8]}"
    _given[place] = text
    return f"{root.rstrip('/')}/{place}"


def fit_name(key: str) -> str:
    """Names a fit, by the key of its store: its place below the drill's directory, or the whole key outside a drill."""
    root = os.environ.get(environment.DRILL_DIRECTORY, "").rstrip("/")
    if root:
        for each in (root, os.path.realpath(root)):
            if key.startswith(f"{each}/"):
                return key[len(each) + 1 :]
    return key


def given(name: str) -> str:
    """Returns the directory as the script names it, for the name of a fit in it."""
    return _given.get(name.partition("/")[0], name)


def record_name(incarnation: int, member: int) -> str:
    """Returns the name of the record of one worker's steps, in one incarnation of its launcher, counted from 0."""
    return f"{incarnation:05d}.w{member:05d}.jsonl"
