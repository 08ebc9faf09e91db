"""Finds a run, and a checkpoint of it, in the directory that a user names. Only reads."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpoint,
    ForeignDirectory,
    NotFound,
    UnsupportedFormat,
    one_line,
    why_unusable,
)
from keras_preempt.checkpoint.finding import CheckpointInfo, committed, is_removed
from keras_preempt.checkpoint.layout import MANIFEST, RUN, is_attempt, parse_step
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process.words import some

_LOOKED_INTO = 50  # folders in which a run is looked for, to name it in a message
_SHOWN = 5

logger = logging.getLogger("keras_preempt")

_LOOKS = 10  # at a directory in which a job saves and removes meanwhile
_SHOWN_STEPS = 10

Result = TypeVar("Result")


def read_run(store: Store) -> dict[str, Any]:
    """Returns what run.json says: see `identity.check_or_create`.

    Raises `ForeignDirectory` if there is none; the message says what is there, and what to pass instead.
    """
    try:
        run = documents.read_document(store, RUN)
    except NotFound:
        raise ForeignDirectory(
            f"Expected the directory of a run, with {RUN} in it. Received: {_what_it_is(store)}"
        ) from None
    if not isinstance(run.get("run_id"), str) or not isinstance(run.get("model"), list):
        raise CorruptCheckpoint(RUN, "an unexpected structure")
    return run


def _what_it_is(store: Store) -> str:
    url = store.url
    if store.path is not None and not store.path.is_dir():
        if store.path.exists():
            return f"{url}, which is no directory. Pass the directory that was given to the callback."
        return f"{url}, which does not exist. Check the spelling, and which folder you are in."
    names = store.children("")
    if not names:
        return f"{url}, which is empty. Pass the directory that was given to the callback, after its first start."
    if MANIFEST in names or any(is_attempt(name) for name in names):
        return f"{url}, which is one checkpoint of a run. Pass the directory above that has {RUN} in it."
    if any(parse_step(name) is not None for name in names):
        return f"{url}, which has checkpoints, but lost its {RUN}. Put {RUN} back from a copy."
    runs = []
    for name in names[:_LOOKED_INTO]:
        # Not there, not ours, or no permission: it is only a hint.
        with contextlib.suppress(CheckpointError, ValueError):
            store.stat(f"{name}/{RUN}")
            runs.append(one_line(name))
    if runs:
        shown = some([os.path.join(url, name) for name in runs], _SHOWN)
        return f"{url}, which holds runs: {shown}. Pass one of them."
    if "checkpoint" in names or any(name.endswith(".index") for name in names):
        return (
            f"{url}, which holds checkpoints of TensorFlow. Look at them with tf.train.list_variables and "
            "tf.train.load_checkpoint; those of a custom loop are such."
        )
    return f"{url}, with other files in it. Pass the directory that was given to the callback."


class NoSuchCheckpoint(CheckpointError):
    """The directory of a run has no checkpoint such as was asked for."""


def read_chosen(
    store: Store, step: int | None, read: Callable[[CheckpointInfo], Result]
) -> tuple[CheckpointInfo, Result]:
    """Reads the newest checkpoint that can be read, or the one of a step.

    `read` reads and verifies what is needed of a checkpoint; its result is returned too. A checkpoint that a running
    job removes meanwhile is skipped. If the newest is damaged, the log says so and the next older one is read, as after
    a restart; a checkpoint of a given step is never replaced by another step's. If there is none, `NoSuchCheckpoint`
    lists the others.
    """
    wrong: dict[str, str] = {}
    for _ in range(_LOOKS):
        infos = committed(store)
        removed = False
        for info in infos:
            if info.directory in wrong or step not in (None, info.step):
                continue
            try:
                if info.error is not None:
                    raise info.error
                return info, read(info)
            except (CorruptCheckpoint, UnsupportedFormat) as error:
                if is_removed(store, info):
                    removed = True
                    continue
                why = why_unusable(info.directory, error)
                wrong[info.directory] = f"{info.directory}: {why}"
                if step is None:
                    logger.warning("The checkpoint %s is not used: %s.", info.directory, why)
        if not removed:
            break
    raise NoSuchCheckpoint(_nothing(store.url, step, infos, list(wrong.values())))


def _nothing(url: str, step: int | None, infos: list[CheckpointInfo], wrong: list[str]) -> str:
    wanted = "a checkpoint" if step is None else f"a checkpoint of step {step}"
    if wrong:
        return (
            f"Expected {wanted} that can be read in {url}. Received: {len(wrong)} that cannot: {'; '.join(wrong)}. "
            "Put the files back from a copy; keras-preempt inspect DIR --verify checks each of them."
        )
    steps = list(dict.fromkeys(info.step for info in infos))
    if not steps:
        return (
            f"Expected {wanted} in {url}. Received: a run that has saved none yet. Wait for its first save, or see "
            "its log for why it could not."
        )
    return (
        f"Expected {wanted} in {url}. Received: those of {'step' if len(steps) == 1 else 'steps'} "
        f"{some(steps, _SHOWN_STEPS)}. Pass one of them."
    )
