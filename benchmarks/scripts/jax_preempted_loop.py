"""One process of the job on JAX in a loop of its own with Orbax' CheckpointManager and its check for preemption.

The step is the one that Keras' fit jits. The loop is that of Orbax' guide to preemption: it asks
`reached_preemption` after each step, and saves and leaves where that says so. Run as: FOLDER STEP_SECONDS WIDTH
GRACE_SECONDS; Orbax knows no grace period.
"""

from __future__ import annotations

import sys
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import jax
import jax_job
import numpy as np
import orbax.checkpoint as ocp
from journal import STEPS, Journal

EXIT_RESTART = 75


def main(folder: str, seconds: float, width: int) -> None:
    jax_job.begin()
    journal = Journal(folder)
    model = jax_job.model(seconds, width)
    model.optimizer.build(model.trainable_variables)
    model.compute_metrics(*[np.zeros((1, 1), np.float32)] * 3)  # Makes their variables.
    state = jax.tree.map(lambda variable: variable.value, variables_of(model))
    shardings = jax.tree.map(lambda value: value.sharding, state)
    train = jax.jit(model.train_step, donate_argnums=0, out_shardings=(None, shardings))
    options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
    with ocp.CheckpointManager(Path(folder, "orbax").resolve(), options=options) as manager:
        for step, batch in enumerate(islice(cycle(batches()), STEPS)):
            journal.step()
            _, state = train(state, batch)
            if manager.reached_preemption(step):
                journal.note("aligned")
                manager.save(step, args=ocp.args.StandardSave(state), force=True)
                manager.wait_until_finished()
                journal.note("saved")
                break
    journal.write()
    sys.exit(EXIT_RESTART)


def variables_of(model: Any) -> tuple[list[Any], ...]:
    """Returns the variables of a model in the order in which its stateless train step takes their values."""
    kinds = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    return (*map(list, kinds), list(model.metrics_variables))


def batches() -> list[Any]:
    """Returns the batches of an epoch, on the devices of all processes."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("batch",))
    divided = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    x, y, batch = jax_job.data()
    return [
        tuple(jax.make_array_from_process_local_data(divided, each[at : at + batch]) for each in (x, y))
        for at in range(0, len(x), batch)
    ]


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
