"""The checkpoint that a fit has resumed from: what callers are told of it, the events and the log."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keras_preempt.agreement.messages import Position
from keras_preempt.checkpoint.in_memory import InMemory
from keras_preempt.checkpoint.reader import Loaded
from keras_preempt.report.events import EventLog

if TYPE_CHECKING:
    from keras_preempt.state.regrouping import Regrouped  # Not at run time: it imports Keras.

logger = logging.getLogger("keras_preempt")


@dataclass(frozen=True)
class Start:
    """What the workers began with.

    Attributes:
        incarnation: The number of this start of the run, from 1.
        restored: The checkpoint to continue from, as this worker reads it, or None for a new run.
        name: The folder of that checkpoint; "" for a new run.
        skipped: Newer checkpoints that could not be used, each with the reason.
        exchanged: Whether the workers have read it together.
        in_memory: That checkpoint, if it comes from the memory of the machines; else None.
    """

    incarnation: int
    restored: Loaded | None
    name: str
    skipped: tuple[str, ...]
    exchanged: bool = False
    in_memory: InMemory | None = None

    @property
    def committed(self) -> str | None:
        """The newest checkpoint in the directory, as far as this start knows; None if there is none."""
        return (self.name if self.in_memory is None else self.in_memory.stored) or None


@dataclass(frozen=True)
class ResumedFrom:
    """Where a training has resumed from: the same on all workers.

    Attributes:
        step: Training steps that were done; for `PreemptionCheckpointHandler`, calls of `run`.
        epoch: The epoch in which training continues, from 0; of a fit that had ended, the number of its epochs. None
            for `PreemptionCheckpointHandler`, which knows no epochs.
        why: Why the checkpoint was saved, and so why training had stopped there. "preempted": after a notice.
            "deadline": at the end of a grace period. "periodic": by `save_every`; what was trained since then is lost,
            because that start was killed or has failed. "requested": by ``keras-preempt save``, likewise.
            "memory": by `memory_every`, in the memory of the machines, likewise.
            "interrupted": by Ctrl-C. "finished": training had ended, and nothing is trained now. None for
            `PreemptionCheckpointHandler`, whose checkpoints do not say.
        checkpoint: The folder of the checkpoint below the directory, such as "step-00000070/00001-0000"; for
            `PreemptionCheckpointHandler` its name, such as "ckpt-3".
    """

    step: int
    epoch: int | None
    why: str | None
    checkpoint: str


def resumed_from(start: Start) -> ResumedFrom | None:
    """Says where the workers have agreed to resume from; None for a new run."""
    if start.restored is None:
        return None
    manifest = start.restored.manifest
    return ResumedFrom(manifest.step, int(manifest.position["epoch"]), manifest.kind, start.name)


@dataclass(frozen=True)
class Restored:
    """What a fit has restored: `how` its input got to its position, in words, and how many seconds it all took."""

    start: Start
    loaded: Loaded
    regrouped: Regrouped | None
    position: Position
    how: str
    seconds: float
    input_seconds: float

    def tell(self, events: EventLog, member: int, before: str | None) -> None:
        """Writes the event, and logs it; see `Session.restore` for `before`."""
        skipped = self.start.skipped
        age = time.time() - self.loaded.manifest.created_at if self.start.in_memory is not None else None
        events.emit(
            "restore",
            checkpoint=self.start.name,
            seconds=self.seconds,
            input_seconds=self.input_seconds,
            skipped=list(skipped),
            substituted_from=self.loaded.substituted_from,
            input=self.how,
            saved_by=self.loaded.manifest.members,
            exchanged=self.start.exchanged,
            memory_age=age,
            regrouped=None if self.regrouped is None else self.regrouped.summary,
        )
        logger.log(
            logging.DEBUG if before is None else logging.INFO,
            "%sContinuing from %s: %s (%s%s). Input: %s.",
            before or "",
            self.start.name,
            self.position,
            "the newest that verified"
            if age is None
            else f"from the memory of the machines, saved {age:.1f} s ago; no tensor was read from the directory",
            f"; not used: {'; '.join(skipped)}" if skipped else "",
            self.how,
        )
        if self.regrouped is not None:
            logger.warning("%s", self.regrouped.summary)
            treated = ", ".join(f"{count} {how}" for how, count in sorted(self.regrouped.treatment.items()))
            logger.info("Variables restored on other replicas: %s.", treated)
        if self.loaded.substituted_from is not None:
            logger.warning(
                "NOT exact: worker %d was killed before it had written its own part of %s. Its metrics, "
                "BatchNormalization statistics, seeds, random state and callbacks are those of worker %d.",
                member,
                self.start.name,
                self.loaded.substituted_from,
            )
