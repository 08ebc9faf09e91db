"""What the callback costs a step without a notice, in nanoseconds.

Begins a real fit on one device and, from inside it, drives the hooks of one step (`on_train_batch_begin` and
`on_train_batch_end`) through Keras' CallbackList, again and again, as fit does: with the callbacks that this
package has put into that very fit, with an empty callback, and with none. In the same process, turn by turn
with these, `PreemptionCheckpointHandler.run`, TensorFlow's and ours, calls a function that does nothing.
The same again in a fit under MirroredStrategy with two replicas, of whose input snapshots are taken.

The table shows the whole call and, net, what is left without what one pays anyway: CallbackList itself, or
the plain call of the function. The exit status is 1 if a net cost of ours is not below that of TensorFlow's handler.

The logs of the steps are empty: Keras converts logs before it calls the callbacks, whatever these are, and one
loss takes it ten times as long as all that is compared here. Times are processor time of the measuring thread,
so that a machine that is busy with other programs shifts them less.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from figures import Aims, conditions, table, tell

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# TensorFlow's handler asks this address whether it is on a Google machine, and on one without a GPU it would
# only pass calls through: nothing listens here, so it does its work everywhere, and no network is asked.
os.environ["GCE_METADATA_IP"] = "127.0.0.1:9"
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts"))

import keras
import numpy as np
import tensorflow as tf
from net_cost import NetCost
from resumed_fit import strategy_of
from taken import Taken
from turns import calls, hooks, nothing, ours_of, running_container, take_turns

from keras_preempt import PreemptionCallback, PreemptionCheckpointHandler

AIM = 500.0
"""Nanoseconds that both hooks of all our callbacks together may cost a step, net."""


class Measure(keras.callbacks.Callback):  # type: ignore[misc]
    """Measures in the middle of the fit that it belongs to.

    Args:
        handler: TensorFlow's handler.
        our_handler: This package's.
        repetitions: How often each contestant takes its turn.
        steps: How many steps a turn has.
        seed: Shuffles the contestants anew in each repetition, so that none always follows the same other.
    """

    def __init__(self, handler: Any, our_handler: Any, repetitions: int, steps: int, seed: int) -> None:
        super().__init__()
        self.results: dict[str, list[float]] = {}
        self.ours: list[str] = []
        self._handler = handler
        self._our_handler = our_handler
        self._turns = (repetitions, steps, seed)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Measures at the third step, when nothing is done for the first time."""
        if batch == 2:
            self.measure(running_container())

    def measure(self, running: Any) -> None:
        """Takes every contestant's turns; `running` is fit's own list of callbacks."""
        ours = ours_of(running)
        self.ours = [type(each).__name__ for each in ours]
        contestants = {
            "none": hooks([]),
            "empty": hooks([keras.callbacks.Callback()]),
            "ours": hooks(ours),
            "call": calls(nothing),
            "run": calls(self._handler.run, nothing),
            "our run": calls(self._our_handler.run, nothing),
        }
        self.results = take_turns(contestants, *self._turns)


def measure(repetitions: int, steps: int, seed: int) -> tuple[Measure, Measure]:
    """Runs both fits and returns what was measured in them: on one device, and under MirroredStrategy.

    Raises:
        RuntimeError: No snapshots are taken under MirroredStrategy.
    """
    mirrored = strategy_of(mirrored=True)  # Before TensorFlow has looked at the devices.
    with tempfile.TemporaryDirectory() as directory:
        handler = tf.distribute.experimental.PreemptionCheckpointHandler(
            None,
            tf.train.Checkpoint(),
            os.path.join(directory, "handler"),
            tf.distribute.experimental.TerminationConfig(exit_fn=nothing),
        )
        our_handler = PreemptionCheckpointHandler(
            None, tf.train.Checkpoint(), os.path.join(directory, "our handler")
        )
        x = np.zeros((16, 2), "float32")
        data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(16, seed=1).repeat().batch(4)
        inputs: list[tuple[Any, dict[str, Any]]] = [
            (tf.distribute.get_strategy(), {"x": x, "y": x[:, :1], "batch_size": 4}),
            (mirrored, {"x": data, "steps_per_epoch": 4}),
        ]
        measured, taken = [], Taken()
        for strategy, given in inputs:
            with strategy.scope():
                model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
                model.compile("sgd", "mse")
            measured.append(Measure(handler, our_handler, repetitions, steps, seed))
            run = os.path.join(directory, f"run {len(measured)}")
            model.fit(**given, epochs=1, verbose=0, callbacks=[PreemptionCallback(run), measured[-1]])
        our_handler.close()
    if taken.of is None or taken.of.given_up:
        raise RuntimeError("Expected snapshots of the input under MirroredStrategy. Received: none.")
    return measured[0], measured[1]


_BASELINE = {
    "none": "none",
    "empty": "none",
    "ours": "none",
    "call": "call",
    "run": "call",
    "our run": "call",
}
"""What one pays anyway, of each contestant."""


def report(measured: Measure, mirrored: Measure, aims: Aims) -> str:
    """Returns the table, and checks our net costs against TensorFlow's and against a bound."""
    cost, there = (NetCost(each.results, _BASELINE, "run") for each in (measured, mirrored))
    rows = [
        cost.row("Keras CallbackList, no callbacks", "none"),
        cost.row("  with one empty keras.callbacks.Callback", "empty"),
        cost.row(f"  with {' and '.join(measured.ours)}", "ours"),
        there.row("  the same, snapshots under MirroredStrategy", "ours"),
        cost.row("a function that does nothing", "call"),
        cost.row("  through PreemptionCheckpointHandler.run", "run"),
        cost.row("  through keras_preempt.PreemptionCheckpointHandler.run", "our run"),
    ]
    header = ["ns per step", "median", "quartiles", "net", "net / TensorFlow's"]
    ratio, run_ratio = cost.ratio("ours"), cost.ratio("our run")
    tell("a step under the callback, idle", "TensorFlow's handler", ratio, better="less")
    tell("a step in our handler's run, idle", "TensorFlow's handler", run_ratio, better="less")
    aims.check("ours over TensorFlow's run", ratio, "below", 1)
    aims.check("our handler's run over TensorFlow's", run_ratio, "below", 1)
    aims.check("ours, net", cost.net["ours"], "below", AIM, " ns")
    with_snapshots = "ours with snapshots under MirroredStrategy"
    aims.check(f"{with_snapshots} over TensorFlow's run", there.ratio("ours"), "below", 1)
    aims.check(f"{with_snapshots}, net", there.net["ours"], "below", AIM, " ns")
    return "\n".join([table(header, rows), "", cost.beside_an_empty_callback()])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=1000, help="turns of each contestant, at least 2")
    parser.add_argument("--steps", type=int, default=500, help="steps in a turn")
    parser.add_argument("--seed", type=int, default=0, help="for the order of the turns")
    options = parser.parse_args(arguments)
    if options.repetitions < 2 or options.steps < 1:
        parser.error("Expected at least 2 repetitions of at least 1 step.")
    measured, mirrored = measure(options.repetitions, options.steps, options.seed)
    aims = Aims()
    text = report(measured, mirrored, aims)
    print(conditions())
    print(f"{options.repetitions} turns of {options.steps} steps each, in shuffled order\n")
    print(text)
    return aims.report()


if __name__ == "__main__":
    sys.exit(main())
