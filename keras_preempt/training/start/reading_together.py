"""Whether the workers of a start read a checkpoint together, and what one of them has read of it.

The workers read a checkpoint each by itself, or together: each reads a share of the mirrored tensors and gets the
others' over the network that the job trains on. So the storage is asked once for every byte, not once by every worker.
That is faster where the storage is behind a network, such as a bucket, whose limits all workers share. A directory is
read by everyone: as a rule the system has it in memory, or at the speed of the disk, which is that of the network or
more. If a share or the exchange fails on one worker, the same checkpoint is proposed again, for each to read all of it.

Every worker needs the part lists of all others. Where the storage is behind a network each list is read by one worker,
which gives it to the others before they read anything else: a start of N workers makes N such requests, not N times N.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from keras_preempt.checkpoint.exchange import Gather
from keras_preempt.checkpoint.reader import Loaded, Reading
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process import environment

EXCHANGE, READ = "exchange", "read"


def reads_together(store: Store) -> bool:
    """Whether the workers are to read a checkpoint together.

    Raises ValueError if the variable `KERAS_PREEMPT_RESTORE` has another value than "exchange" or "read".
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
    """What this worker has read of a checkpoint that all read together; `loaded` is complete after `exchange`.

    `settled` settles the errors that end the exchange for all workers.
    """

    loaded: Loaded
    reading: Reading
    gather: Gather
    settled: Callable[[], contextlib.AbstractContextManager[None]]

    def exchange(self) -> Loaded:
        """Exchanges the shares with the other workers, who do it at the same time.

        Raises CheckpointError if what has arrived here is not what was written. After any other error the exchange has
        ended for all workers, and training is not possible.
        """
        with self.settled():
            self.reading.exchange(self.gather)
        return self.loaded
