"""Whether a custom loop calls `save_checkpoint_if_preempted` before each step or after it.

The call cannot know whether its step is done, and the checkpoint needs the right count: with one more than it holds,
the restart leaves a step out; with one less, it repeats one. The two orders differ only in the first call of a process,
which comes before any step or after one. A step changes something of what is saved. So that is compared once: if all is
as it was when the handler was made, the calls come before the steps.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

logger = logging.getLogger("keras_preempt")

_MOST = 4096
"""The most elements of a variable that are compared, evenly spread; more would be slow for a large model."""

_VARIABLES = (tf.Variable, tf.distribute.DistributedValues)


class CallOrder:
    """Finds the order of one loop at its first call.

    Args:
        checkpoint: The `tf.train.Checkpoint` that is saved, with its state as it is before the first step.
        ignored: Variables in it that no step changes.
    """

    def __init__(self, checkpoint: Any, ignored: tuple[Any, ...] = ()) -> None:
        self._checkpoint = checkpoint
        self._ignored = {id(each) for each in ignored}
        self._at_first: bytes | None = self._digest()
        self._steps_first: bool | None = None

    @property
    def steps_first(self) -> bool:
        """Whether a step was done when this was first asked; True if nothing is saved by which to tell."""
        if self._steps_first is None:
            self._steps_first = self._at_first is None or self._digest() != self._at_first
            self._at_first = None
            order = "after" if self._steps_first else "before"
            logger.info("save_checkpoint_if_preempted is called %s each step.", order)
        return self._steps_first

    def _digest(self) -> bytes | None:
        """Returns a digest of what is saved; None if there are no variables."""
        digest, found = hashlib.blake2b(digest_size=16), False
        for part in self._parts():
            found = True
            digest.update(f"{part.dtype.name}{part.shape}".encode())
            try:
                flat = tf.reshape(part, [-1])  # On the variable's device: only the sample is fetched.
            except tf.errors.FailedPreconditionError:
                continue  # It has no value yet.
            digest.update(flat[:: -(-max(1, part.shape.num_elements()) // _MOST)].numpy().tobytes())
        return digest.digest() if found else None

    def _parts(self) -> Iterator[Any]:
        """Yields the variables; of distributed ones the first replica's part, since all would take a collective."""
        for each in tf.train.TrackableView(self._checkpoint).descendants():
            variable = each.value if isinstance(each, keras.Variable) else each
            if id(each) in self._ignored or not isinstance(variable, _VARIABLES):
                continue
            part = variable.values[0] if isinstance(variable, tf.distribute.DistributedValues) else variable
            kind = part.dtype
            numeric = kind.is_floating or kind.is_integer or kind.is_bool or kind.is_complex
            if numeric and part.shape.is_fully_defined():
                yield part
