"""How many training steps are done: batches that `fit` has trained on.

An optimizer counts something else where gradients are added up over several batches, where there are several
optimizers, or where a schedule sets its count back. Checkpoints, schedules and reports go by the batches.
"""

from __future__ import annotations

from collections import deque

_LATEST = 8
"""More steps than a backend that runs ahead may report at once, and out of order."""


class StepCount:
    """The steps of a fit, of a model that had done some; an epoch has `in_epoch` batches, if that is known.

    Attributes:
        ended: The numbers, in their epoch, of the batches that Keras has reported last as done.
    """

    def __init__(self, done: int, per_execution: int = 1, in_epoch: int | None = None) -> None:
        self.ended: deque[int] = deque(maxlen=_LATEST)
        self._done, self._batch = done, 0
        self._per_execution, self._in_epoch = per_execution, in_epoch

    @property
    def done(self) -> int:
        if not self.ended:
            return self._done
        # With several steps in an execution, Keras says its first or its last one.
        executions = (max(self.ended) - self._batch) // self._per_execution + 1
        steps = executions * self._per_execution
        if self._in_epoch is not None:
            steps = min(steps, self._in_epoch - self._batch)
        return self._done + max(0, steps)

    def before(self, batch: int) -> int:
        """Returns how many steps are done before a batch of this epoch."""
        return self._done + batch - self._batch

    def epoch_is_over(self) -> None:
        self._done, self._batch = self.done, 0
        self.ended.clear()

    def continue_at(self, step: int, batch: int) -> None:
        """The fit continues from a checkpoint after `step` steps, at this batch of its epoch."""
        self._done, self._batch = step, batch
        self.ended.clear()
