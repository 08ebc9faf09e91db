"""What the callback costs a step on JAX without a notice, compared with JAX's own check for preemption.

Begins a real fit in two processes that JAX connects and, from inside it, drives the hooks of one step through
Keras' CallbackList, again and again: with the callbacks that this package has put into that very fit, with an empty
callback, and with none. In the same process, turn by turn with these,
`multihost_utils.reached_preemption_sync_point` is asked for each step, which is what Orbax'
`CheckpointManager.reached_preemption` asks. The third part of our cost is what this package puts around each step
so that the host queues only a window of them: measured around a step that takes no time, with the logs of a loss
and a metric.

JAX's check looks at a flag of this process, without asking anybody: it costs less than a callback of Keras that does
nothing. Its ratio is printed; an aim is that Orbax' own call costs more than our hooks.

The table shows the whole call and, net, what is left without what one pays anyway: CallbackList itself, the call of
a function, or of the step. All is processor time of the measuring thread, in process 0. The exit status is 1 if an
aim is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from figures import ON_JAX, Aims, conditions, table, tell
from net_cost import NetCost
from preemption import ON_JAX as ENVIRONMENT

from keras_preempt.cluster import LocalCluster

SCRIPT = Path(__file__).parent / "scripts" / "jax_hooks.py"
MEASURED = "MEASURED "
PROCESSES = 2

_LIMIT = 600.0
"""Seconds for the whole job."""

AIM = 500.0
"""Nanoseconds that both hooks of all our callbacks together may cost a step, net, as on TensorFlow."""


def measure(repetitions: int, steps: int, seed: int) -> tuple[list[str], dict[str, list[float]]]:
    """Runs the job; returns the names of our callbacks, and nanoseconds per step by contestant.

    Raises:
        RuntimeError: The job has failed.
    """
    lines: list[str] = []

    def log(worker: int, line: str) -> None:
        lines.append(f"w{worker}: {line}")

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(SCRIPT), folder, *map(str, (repetitions, steps, seed))]
        with LocalCluster(PROCESSES, command, env=ENVIRONMENT, log=log) as cluster:
            codes = [end.code for end in cluster.wait(_LIMIT)]
    begins = f"w0: {MEASURED}"
    found = [line.removeprefix(begins) for line in lines if line.startswith(begins)]
    if any(codes) or not found:
        raise RuntimeError("\n".join([f"Expected exit codes 0. Received: {codes}.", *lines[-40:]]))
    measured = json.loads(found[0])
    return measured["ours"], measured["results"]


_BASELINE = {
    "none": "none",
    "empty": "none",
    "ours": "none",
    "call": "call",
    "check": "call",
    "orbax": "call",
    "step": "step",
    "windowed": "step",
}
"""What one pays anyway, of each contestant."""


def report(ours: Sequence[str], results: Mapping[str, list[float]], aims: Aims) -> str:
    """Returns the table, and checks our net costs against JAX's check."""
    cost = NetCost(results, _BASELINE, "check")
    net = cost.net
    titles = {
        "none": "Keras CallbackList, no callbacks",
        "empty": "  with one empty keras.callbacks.Callback",
        "ours": f"  with {' and '.join(ours)}",
        "call": "a function that does nothing",
        "check": "  reached_preemption_sync_point",
        "orbax": "  CheckpointManager.reached_preemption of Orbax",
        "step": "a step that takes no time",
        "windowed": "  with the window of steps",
    }
    rows = [cost.row(title, name) for name, title in titles.items() if name in results]
    hooks = cost.ratio("ours")
    both = hooks + cost.ratio("windowed")
    tell("the hooks of a step on JAX, idle", "reached_preemption_sync_point", hooks, better="less")
    tell("hooks and window of a step on JAX, idle", "reached_preemption_sync_point", both, better="less")
    aims.check("hooks, net", net["ours"], "below", AIM, " ns")
    if "orbax" in net:
        ratio = net["ours"] / net["orbax"]
        tell("the hooks of a step on JAX, idle", "reached_preemption of Orbax", ratio, better="less")
        aims.check("hooks over reached_preemption of Orbax", ratio, "below", 1)
    header = ["ns per step", "median", "quartiles", "net", "net / check"]
    return "\n".join([table(header, rows), "", cost.beside_an_empty_callback()])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=400, help="turns of each contestant, at least 2")
    parser.add_argument("--steps", type=int, default=500, help="steps in a turn")
    parser.add_argument("--seed", type=int, default=0, help="for the order of the turns")
    options = parser.parse_args(arguments)
    if options.repetitions < 2 or options.steps < 1:
        parser.error("Expected at least 2 repetitions of at least 1 step.")
    print(conditions(*ON_JAX), flush=True)
    ours, results = measure(options.repetitions, options.steps, options.seed)
    aims = Aims()
    text = report(ours, results, aims)
    print(f"{options.repetitions} turns of {options.steps} steps each, in shuffled order\n\n{text}")
    return aims.report()


if __name__ == "__main__":
    sys.exit(main())
