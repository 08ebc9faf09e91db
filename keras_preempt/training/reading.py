"""How the workers of a fit read a checkpoint: each all of it, or together.

Together, each reads a share of the mirrored tensors and gets the others' over the network that the job trains on, so
that the storage is asked once for every byte, not once by every worker. That is faster where the storage is behind a
network, such as a bucket, whose limits all workers share. A directory is read by everyone: as a rule the system has it
in memory, or at the speed of the disk, which is that of the network or more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from keras_preempt.checkpoint.box_assembly import Wanted
from keras_preempt.checkpoint.exchange import Gather
from keras_preempt.checkpoint.other_workers import Setup, load_with
from keras_preempt.checkpoint.reader import CheckpointInfo, Loaded, Reading
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process import environment
from keras_preempt.report.progress import transfer

EXCHANGE, READ = "exchange", "read"


def together(store: Store) -> bool:
    """Whether the workers are to read a checkpoint together.

    Args:
        store: Where it is.

    Raises:
        ValueError: The environment variable `KERAS_PREEMPT_RESTORE` has another value than "exchange" or "read".
    """
    text = os.environ.get(environment.RESTORE)
    if not text:
        return store.shared_by_network
    if text not in (EXCHANGE, READ):
        raise ValueError(
            f"Expected {environment.RESTORE} to be 'exchange' or 'read'. Received: {text!r}. Correct it, or unset it: "
            "then a bucket is read by 'exchange' and a directory by 'read'."
        )
    return text == EXCHANGE


@dataclass(frozen=True)
class Share:
    """What this worker has read of a checkpoint that all read together.

    Attributes:
        loaded: What it gets; complete after `exchange`.
        reading: What has read it.
        gather: How it gets the shares of the others.
        settled: Settles the errors that end the exchange for all workers.
    """

    loaded: Loaded
    reading: Reading
    gather: Gather
    settled: Callable[[], AbstractContextManager[None]]

    @property
    def plan(self) -> str:
        """See `startup.Share.plan`."""
        return self.reading.plan

    def exchange(self) -> Loaded:
        """See `startup.Share.exchange`."""
        with self.settled():
            self.reading.exchange(self.gather)
        return self.loaded


def read_share(
    store: Store,
    info: CheckpointInfo,
    share: tuple[int, int],
    setup: Setup,
    gather: Gather,
    settled: Callable[[], AbstractContextManager[None]],
    wanted: Wanted | None = None,
) -> Share:
    """Reads a worker's share of a checkpoint.

    Args:
        store: The run's directory.
        info: Which checkpoint.
        share: The worker's number, and how many workers there are.
        setup: What it trains on.
        gather: See `Share`.
        settled: See `Share`.
        wanted: See `reader.Reading`; these boxes are read by every worker that needs them.

    Raises:
        CheckpointError: As from `reader.Reading`.
    """
    reading = Reading(store, info, transfer, share, wanted)
    return Share(load_with(reading, info, share[0], setup), reading, gather, settled)
