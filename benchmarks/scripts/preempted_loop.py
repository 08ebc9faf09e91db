"""One worker of the job under TensorFlow's PreemptionCheckpointHandler.

Run as: FOLDER STEP_SECONDS WIDTH GRACE_SECONDS.
"""

from __future__ import annotations

import os
import sys
from typing import Any

# Nothing listens here: on a Google machine without a GPU the handler would only pass calls through.
os.environ["GCE_METADATA_IP"] = "127.0.0.1:9"

import tensorflow as tf
from job import data, model
from journal import STEPS, Journal

EXIT_RESTART = 75


def main(folder: str, seconds: float, width: int, grace: float) -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    journal = Journal(folder)
    with strategy.scope():
        trained = model(seconds, width)
        trained.optimizer.build(trained.trainable_variables)
    batches = iter(strategy.experimental_distribute_dataset(data()))

    # The chief's checkpoint is the one that is kept; the others have to take part, and write elsewhere.
    own = "checkpoint" if resolver.task_id == 0 else f"worker-{resolver.task_id}"
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=trained, optimizer=trained.optimizer),
        os.path.join(folder, own),
        max_to_keep=1,
    )

    def save(*arguments: Any, **options: Any) -> None:
        journal.note("aligned")
        manager.save(*arguments, **options)
        journal.note("saved")

    def leave() -> None:
        journal.write()
        sys.exit(EXIT_RESTART)

    config = tf.distribute.experimental.TerminationConfig(exit_fn=leave, grace_period=grace, save_fn=save)
    handler = tf.distribute.experimental.PreemptionCheckpointHandler(resolver, manager, None, config)

    @tf.function  # type: ignore[untyped-decorator]
    def distributed_step(batch: Any) -> Any:
        return strategy.run(trained.train_step, args=(batch,))

    def step(iterator: Any) -> Any:
        journal.step()
        return distributed_step(next(iterator))

    for _ in range(STEPS):
        handler.run(step, batches)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
