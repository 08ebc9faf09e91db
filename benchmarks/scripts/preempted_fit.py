"""One worker of the job under `PreemptionCallback`. Run as: FOLDER STEP_SECONDS WIDTH GRACE_SECONDS."""

from __future__ import annotations

import sys

import tensorflow as tf
from job import data, model
from journal import STEPS, Journal
from steps import Steps

from keras_preempt import PreemptionCallback, TerminationConfig


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
