"""One process of the job on JAX under `PreemptionCallback`. Run as: FOLDER STEP_SECONDS WIDTH GRACE_SECONDS."""

from __future__ import annotations

import sys

import jax_job
from journal import STEPS, Journal
from steps import Steps

from keras_preempt import PreemptionCallback, TerminationConfig


def main(folder: str, seconds: float, width: int, grace: float) -> None:
    jax_job.begin()
    callback = PreemptionCallback(folder, termination=TerminationConfig(grace_period=grace))
    journal = Journal(folder)
    model = jax_job.model(seconds, width)
    x, y, batch = jax_job.data()
    try:
        model.fit(x, y, batch_size=batch, epochs=STEPS, verbose=0, callbacks=[callback, Steps(journal)])
    finally:
        journal.write()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
