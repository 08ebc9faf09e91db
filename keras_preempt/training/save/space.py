"""Whether there is room for the checkpoints of a fit, before it begins."""

from __future__ import annotations

import logging
import math

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.state.model import ModelState

logger = logging.getLogger("keras_preempt")


def check_space(store: Store, model_state: ModelState, members: int, replicas: int) -> None:
    """Makes sure, before training begins, that there is room for what this worker writes, or stages for a bucket.

    That is an even share of what all hold and of the pieces that it holds of divided values, and all of its own, for
    each of its `replicas`. If others are under notice it has to take over their shares too: where there is no room for
    that, a warning says so. Raises `StoreUnavailable` if there is not enough room.
    """
    sizes = model_state.sizes()
    store.check_space(math.ceil(sizes.mirrored / members + sizes.share) + sizes.local * replicas)
    try:
        store.check_space(sizes.mirrored + sizes.held + sizes.local * replicas)
    except StoreUnavailable as error:
        logger.warning(
            "There is room for this worker's share of a checkpoint, but not for a whole one, which it has to "
            "write when all other workers are under notice at once. %s",
            error,
        )
