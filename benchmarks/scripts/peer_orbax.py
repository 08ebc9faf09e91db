"""The peer Orbax, in a loop of JAX with the check for preemption of its guide. Run as: FOLDER WAY [UPDATES].

`state`: the checkpoint has weights, optimizer and the key of the Dropout; the data begin anew. `with_grain`: it also
has Grain's iterator, as the guide to Grain with Orbax has it.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import peer_problem

ADAM = optax.adam(1e-3)


def initial() -> dict[str, Any]:
    """Returns the weights, the optimizer and the key of the Dropout, the same in each start."""
    first, second, dropout = jax.random.split(jax.random.PRNGKey(1), 3)
    weights = {
        "kernel": jax.random.normal(first, (4, 16)) / 2,
        "bias": jnp.zeros(16),
        "head": jax.random.normal(second, (16, 1)) / 4,
    }
    return {"weights": weights, "optimizer": ADAM.init(weights), "dropout": dropout}


@jax.jit
def train(state: dict[str, Any], x: Any, y: Any) -> dict[str, Any]:
    """One step."""
    dropout, key = jax.random.split(state["dropout"])

    def loss(weights: dict[str, Any]) -> Any:
        hidden = jax.nn.relu(x @ weights["kernel"] + weights["bias"])
        kept = jax.random.bernoulli(key, 0.8, hidden.shape)
        return jnp.mean((jnp.where(kept, hidden / 0.8, 0) @ weights["head"] - y) ** 2)

    updates, optimizer = ADAM.update(jax.grad(loss)(state["weights"]), state["optimizer"])
    weights = optax.apply_updates(state["weights"], updates)
    return {"weights": weights, "optimizer": optimizer, "dropout": dropout}


def batches() -> Any:
    """Returns Grain's iterator over the batches of all epochs, each in an order of its own."""
    numbers = grain.MapDataset.range(peer_problem.SAMPLES).seed(1).shuffle().repeat(peer_problem.EPOCHS)
    return iter(numbers.batch(peer_problem.BATCH).to_iter_dataset())


def loop(folder: str, steps: peer_problem.Steps, *, keep_data: bool, listen: bool = True) -> dict[str, Any]:
    """Trains, and returns the end; saves and leaves where Orbax says that the process is to be preempted."""
    if listen:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        jax.distributed.initialize(address, num_processes=1, process_id=0)  # It hears the signal.
    x, y = peer_problem.data()
    state, data, begin = initial(), batches(), 0
    with ocp.CheckpointManager(Path(folder, "saved").resolve()) as manager:
        newest = manager.latest_step() if listen else None
        if newest is not None:
            restore = {"state": ocp.args.StandardRestore(state)}
            if keep_data:
                restore["data"] = grain.checkpoint.CheckpointRestore(data)
            state = manager.restore(newest, args=ocp.args.Composite(**restore))["state"]
            begin = newest + 1
        for step in range(begin, peer_problem.EPOCHS * peer_problem.STEPS):
            numbers = next(data)
            steps.note(step, numbers)
            state = train(state, x[numbers], y[numbers])
            if listen and manager.reached_preemption(step):
                kept = {"state": ocp.args.StandardSave(state)}
                if keep_data:
                    kept["data"] = grain.checkpoint.CheckpointSave(data)
                manager.save(step, args=ocp.args.Composite(**kept), force=True)
                manager.wait_until_finished()
                sys.exit(peer_problem.EXIT_RESTART)
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(place): np.asarray(value) for place, value in leaves}


def alone(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """Nothing that saves."""
    return loop(folder, steps, keep_data=False, listen=False)


def state(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """The iterator is not kept."""
    return loop(folder, steps, keep_data=False)


def with_grain(folder: str, steps: peer_problem.Steps) -> dict[str, Any]:
    """The iterator is in the checkpoint."""
    return loop(folder, steps, keep_data=True)


if __name__ == "__main__":
    peer_problem.run({each.__name__: each for each in (alone, state, with_grain)})
