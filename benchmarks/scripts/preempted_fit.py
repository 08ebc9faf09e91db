"""One worker of the job under `PreemptionCallback`. Run as: FOLDER STEP_SECONDS WIDTH GRACE_SECONDS."""

from __future__ import annotations

import sys

import keras
import tensorflow as tf
from job import STEPS, Journal, data, model

from keras_preempt import PreemptionCallback, TerminationConfig


class Steps(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes each step that begins: it comes after the PreemptionCallback, which lets no extra one begin."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """The boundary is passed."""
        self._journal.step()

    def get_state(self) -> dict[str, object]:
        """Nothing to keep; without this the PreemptionCallback warns that nothing is kept."""
        return {}

    def set_state(self, state: dict[str, object]) -> None:
        """See `get_state`."""


def main(folder: str, seconds: float, width: int, grace: float) -> None:
    callback = PreemptionCallback(folder, termination=TerminationConfig(grace_period=grace))
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    journal = Journal(folder)
    with strategy.scope():
        trained = model(seconds, width)
    try:
        trained.fit(data(), steps_per_epoch=STEPS, verbose=0, callbacks=[callback, Steps(journal)])
    finally:
        journal.write()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
