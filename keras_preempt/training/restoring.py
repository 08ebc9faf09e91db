"""Takes over the checkpoint that the workers agreed on, and tells how."""

from __future__ import annotations

import logging
import time

from keras_preempt.agreement.alignment import Position
from keras_preempt.checkpoint.errors import CorruptCheckpoint
from keras_preempt.report.events import EventLog
from keras_preempt.training.session import Session
from keras_preempt.training.startup import Start

logger = logging.getLogger("keras_preempt")


def restore(session: Session, start: Start, member: int, events: EventLog, before: str | None = "") -> float:
    """Restores a fit.

    Args:
        session: The fit.
        start: What the workers agreed on; there is a checkpoint.
        member: The index of this process.
        events: Told what was restored.
        before: What to say in front of the line that tells from where; None if that is to be left out, as nothing
            will be trained.

    Returns:
        How long it took, in seconds.

    Raises:
        CorruptCheckpoint: All sums are right, and yet it is not what such a fit has saved.
    """
    assert start.restored is not None
    began = time.time()
    try:
        how = session.restore(start.restored, start.name)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise CorruptCheckpoint(start.name, f"a state of another structure ({error!r})") from error
    seconds = time.time() - began
    regrouped = session.regrouped
    restored = start.restored if regrouped is None else regrouped.loaded
    where, substituted = restored.manifest.position, restored.substituted_from
    events.emit(
        "restore",
        checkpoint=start.name,
        seconds=seconds,
        input_seconds=session.input_seconds,
        skipped=list(start.skipped),
        substituted_from=substituted,
        input=how,
        saved_by=restored.manifest.members,
        regrouped=None if regrouped is None else regrouped.summary,
    )
    logger.log(
        logging.DEBUG if before is None else logging.INFO,
        "%sContinuing from %s: %s (the newest that verified%s). Input: %s.",
        before or "",
        start.name,
        Position(where["epoch"], where["phase"], where["batch"], where["step"]),
        f"; not used: {'; '.join(start.skipped)}" if start.skipped else "",
        how,
    )
    if regrouped is not None:
        logger.warning("%s", regrouped.summary)
        treated = ", ".join(f"{count} {how}" for how, count in sorted(regrouped.treatment.items()))
        logger.info("Variables restored on other replicas: %s.", treated)
    if substituted is not None:
        logger.warning(
            "NOT exact: worker %d was killed before it had written its own part of %s. Its metrics, "
            "BatchNormalization statistics, seeds, random state and callbacks are those of worker %d.",
            member,
            start.name,
            substituted,
        )
    return seconds
