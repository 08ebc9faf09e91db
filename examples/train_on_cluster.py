"""Reads handwritten digits on a cluster: finds out who the other workers are, and trains as examples/digits.py does.

It is started by a Kubernetes JobSet, by Slurm's srun, by Vertex AI, or on machines that WORKERS names. Each of these
has a folder beside this file, with the files that start it there and a README that explains them::

    python examples/train_on_cluster.py gs://bucket/runs/digits

Without a cluster it trains in one process. With KERAS_BACKEND=jax it trains on JAX.
"""

from __future__ import annotations

import argparse
import json
import os

import digits
import keras

from keras_preempt import PreemptionCallback, TerminationConfig
from keras_preempt.cluster import (
    tf_config_from_hosts,
    tf_config_from_jobset,
    tf_config_from_slurm,
    worker_environment,
)


def find_cluster() -> None:
    """Sets the variables by which TensorFlow and JAX find the other workers."""
    if "TF_CONFIG" in os.environ:  # Set by whoever has started this process, as Vertex AI does.
        config = json.loads(os.environ["TF_CONFIG"])
    elif "JOBSET_NAME" in os.environ:
        config = tf_config_from_jobset()
    elif "SLURM_STEP_ID" in os.environ:
        config = tf_config_from_slurm()
    elif "WORKERS" in os.environ:
        config = tf_config_from_hosts(os.environ["WORKERS"].split())
    else:
        return
    os.environ.update(worker_environment(config))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="where the checkpoints are; all workers must share it")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--save-every", default="10min", help="for machines that go without a word")
    arguments = parser.parse_args()
    find_cluster()
    job = digits.start()
    with job.scope:
        model = digits.make_model()
        model.compile(
            "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
        )
    callback = PreemptionCallback(
        arguments.directory,
        save_every=arguments.save_every,
        # Slurm sends SIGUSR1 if it was submitted with --signal=USR1@300; other platforms do not send it. Without a
        # grace_period a signal means: save and leave at once, since it does not say how much time is left.
        termination=TerminationConfig(signals=("SIGTERM", "SIGUSR1")),
    )
    history = model.fit(
        **digits.load_data(32, job),
        epochs=arguments.epochs,
        callbacks=[callback],
        verbose=2 if job.first else 0,
    )
    if job.first:
        print(f"validation accuracy: {history.history['val_accuracy'][-1]:.4f}")


if __name__ == "__main__":
    main()
