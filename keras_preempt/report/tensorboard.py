"""Points for TensorBoard: what interruptions have cost this run, beside the curves that Keras draws.

The chief writes them, if its fit has a TensorBoard callback: for each save how long it took, and the figures of a
report once when the run was continued and once at its end. Nothing is done at a step, and a failure here never ends
training or a save: the point is left out, which is logged once, and the next one is tried again.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import keras

from keras_preempt.backend import summaries
from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.process.threads import started
from keras_preempt.report.event import Record

logger = logging.getLogger("keras_preempt")

GOODPUT = "keras_preempt/goodput"
LOST_STEPS = "keras_preempt/lost_steps"
SAVE_SECONDS = "keras_preempt/save_seconds"

PATIENCE = 10.0
"""Seconds that the end of training waits at most for the events of the run to be read."""

_MOMENT = 1.0  # seconds

_FAILURES = (CheckpointError, OSError, RuntimeError)


class Points:
    """The points of one fit, for the TensorBoards among its callbacks, all set up.

    `step` is that of the checkpoint that start `incarnation` continues from; None if it starts from the beginning.
    """

    def __init__(
        self,
        callbacks: Iterable[keras.callbacks.Callback],
        directory: str,
        incarnation: int,
        step: int | None,
    ) -> None:
        self._directory = directory
        self._incarnation = incarnation
        self._saved = -1 if step is None else step
        self._first_point: int | None = None
        self._over = self._failed = False
        self._lock = threading.Lock()
        self._reading: threading.Thread | None = None
        self._writers: list[Any] = []
        try:
            self._writers += [
                summaries.summary_writer(callback)
                for callback in callbacks
                if isinstance(callback, keras.callbacks.TensorBoard)
            ]
        except _FAILURES as error:
            self._left_out(error)

    def saved(self, step: int, seconds: float) -> None:
        """Writes how long a committed save took, from the moment at which training stopped for it; in any thread.

        A second checkpoint of the same step, such as one in a validation, gets no point.
        """
        if self._writers and step > self._saved:
            self._saved = step
            self._write(step, {SAVE_SECONDS: seconds})

    def first_step(self, step: int) -> None:
        """Writes the figures of a run that was continued: its first step, the `step`-th of the run, is done."""
        if self._writers and self._incarnation > 1:
            self._read(step, at_the_end=False)

    def finished(self, step: int) -> None:
        """Writes the figures at the end of training, at that step."""
        if not self._writers:
            return
        if self._wait(PATIENCE):
            self._read(step, at_the_end=True)
            if self._wait(PATIENCE):
                return
        logger.info(
            "TensorBoard does not get the last %s: the events of the run were not read within %.0f s. "
            "keras-preempt report shows it.",
            GOODPUT,
            PATIENCE,
        )

    def close(self) -> None:
        """Ends the points; those that are nearly read are still written."""
        self._wait(_MOMENT)
        with self._lock:
            self._over = True

    def _read(self, step: int, *, at_the_end: bool) -> None:
        # In a thread, and from a store of its own: reading a bucket may take seconds, and may be abandoned.
        report = partial(self._report, at_the_end=at_the_end)
        self._reading = started(report, "keras_preempt-points", step)

    def _wait(self, seconds: float) -> bool:
        if self._reading is not None:
            self._reading.join(seconds)
        return self._reading is None or not self._reading.is_alive()

    def _report(self, step: int, at_the_end: bool) -> None:
        from keras_preempt.process import this_process  # Not for those who have no TensorBoard.
        from keras_preempt.report import events
        from keras_preempt.report.account import account

        try:
            with contextlib.closing(open_store(self._directory)) as store:
                records = events.read(store, lambda gap: None)
            found = account(records, (), time.time(), this_process.is_alive)
            taken = _taken_steps(records, self._incarnation)
            if not at_the_end:
                self._first_point = step = next(free for free in itertools.count(step) if free not in taken)
            elif step in taken or step == self._first_point:
                return
            if found is not None:
                self._write(step, {GOODPUT: found.goodput, LOST_STEPS: found.lost})
        except _FAILURES as error:
            self._left_out(error)

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        try:
            with self._lock:
                for writer in () if self._over else self._writers:
                    summaries.write_points(writer, values, step)
        except _FAILURES as error:
            self._left_out(error)

    def _left_out(self, error: BaseException) -> None:
        with self._lock:
            logged, self._failed = self._failed, True
        if not logged:
            logger.warning("TensorBoard lacks points about this run (%s); training goes on.", error)


def _taken_steps(records: Sequence[Record], incarnation: int) -> set[int]:
    """Returns the steps at which starts before `incarnation` have written figures, if they had a TensorBoard.

    After a kill the same steps are run again, and two points at one step would be a vertical line in the picture.
    """
    taken: set[int] = set()
    for record in records:
        step = record.get("step")
        if record.get("member") != 0 or record["incarnation"] >= incarnation or not isinstance(step, int):
            continue
        if record["event"] == "first_step" and record["incarnation"] > 1:
            taken.add(next(free for free in itertools.count(step) if free not in taken))
        elif record["event"] == "finish":
            taken.add(step)
    return taken
