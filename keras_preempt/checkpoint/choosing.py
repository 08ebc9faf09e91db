"""Which checkpoint of a directory is meant: the newest that is whole, or that of a step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from keras_preempt.checkpoint.errors import CheckpointError, CorruptCheckpoint, NotFound, UnsupportedFormat
from keras_preempt.checkpoint.layout import MANIFEST
from keras_preempt.checkpoint.reader import CheckpointInfo, committed
from keras_preempt.checkpoint.storage.store import Store

logger = logging.getLogger("keras_preempt")

_LOOKS = 10  # at a directory in which a job saves and removes meanwhile
_SHOWN = 10

Result = TypeVar("Result")


class NoSuchCheckpoint(CheckpointError):
    """The directory of a run has no checkpoint such as was asked for."""


def read_chosen(
    store: Store, step: int | None, read: Callable[[CheckpointInfo], Result]
) -> tuple[CheckpointInfo, Result]:
    """Reads the newest checkpoint that can be read, or the one of a step.

    One that a running job removes meanwhile is passed over. If the newest is damaged, the log says so and the next
    older one is read, as a restart would; that of a step is never exchanged for another step's.

    Args:
        store: the run's directory.
        step: optimizer steps done; None for the newest.
        read: reads and verifies what is needed of a checkpoint.

    Returns:
        The checkpoint, and what `read` returned for it.

    Raises:
        NoSuchCheckpoint: there is none, none of that step, or none that can be read; the message says which there are.
        StoreUnavailable: the storage failed.
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
                wrong[info.directory] = f"{info.directory}: {error}"
                if step is None:
                    logger.warning("The checkpoint %s is not used: %s", info.directory, error)
        if not removed:
            break
    raise NoSuchCheckpoint(_nothing(store.url, step, infos, list(wrong.values())))


def is_removed(store: Store, info: CheckpointInfo) -> bool:
    """Returns whether a checkpoint that was listed is none any more: its manifest is what a removal takes first."""
    try:
        store.stat(f"{info.directory}/{MANIFEST}")
    except NotFound:
        return True
    except ValueError:  # an unsafe name, which is there
        return False
    return False


def _nothing(url: str, step: int | None, infos: list[CheckpointInfo], wrong: list[str]) -> str:
    wanted = "a checkpoint" if step is None else f"a checkpoint of step {step}"
    if wrong:
        told = "; ".join(reason.rstrip(".") for reason in wrong)
        return f"Expected {wanted} that can be read in {url}. Received: {told}."
    steps = list(dict.fromkeys(info.step for info in infos))
    if not steps:
        return (
            f"Expected {wanted} in {url}. Received: a run that has saved none yet. Wait for its first save, or see "
            "its log for why it could not."
        )
    shown = ", ".join(map(str, steps[:_SHOWN])) + (
        f" and {len(steps) - _SHOWN} more" if len(steps) > _SHOWN else ""
    )
    return (
        f"Expected {wanted} in {url}. Received: those of {'step' if len(steps) == 1 else 'steps'} {shown}. Pass one "
        "of them."
    )
