"""What the callback adds to the first step of a new run: the trace that a restore needs is the one that the step uses.

Each measurement is a process of its own, which trains a convolutional network for one step: with plain Keras, or with a
PreemptionCallback. The model is built before, or builds its layers in its first step. Processor time is measured, from
the call of `fit` to the end of the step, since other programs would count in the time by the clock; the two take turns.
With `--backend torch` nothing is traced, and the data is a DataLoader instead of a tf.data.Dataset.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from figures import ON_TORCH, Aims, conditions, table, tell

MODELS = ("built", "lazily built")
WAYS = ("plain", "ours")

AIM = 1.15
"""The most that a first step may take, over one of plain Keras: the callback also opens its directory and claims it."""

_PROGRAM = """
import os, sys, time
import keras, numpy as np
from keras_preempt import PreemptionCallback
from keras_preempt.backend.seam import backend

model, way, directory = sys.argv[1:]
backend()

class First(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("TOOK", time.process_time() - began, flush=True)
        os._exit(0)

    def get_state(self):
        return {}

    def set_state(self, state):
        pass

layers = [] if model == "lazily built" else [keras.Input((16, 16, 1))]
for _ in range(12):
    layers += [keras.layers.Conv2D(8, 3, padding="same"), keras.layers.BatchNormalization(), keras.layers.ReLU()]
network = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)])
network.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
x, y = np.zeros((64, 16, 16, 1), "float32"), np.zeros(64)
if keras.backend.backend() == "torch":
    import torch
    samples = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    data = torch.utils.data.DataLoader(samples, batch_size=16)
else:
    import tensorflow as tf
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
callbacks = [First()] if way == "plain" else [PreemptionCallback(directory), First()]
began = time.process_time()
network.fit(data, verbose=0, callbacks=callbacks)
"""


def measure(model: str, way: str, backend: str) -> float:
    """Returns the seconds of processor time from the call of `fit` to the end of the first step."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    environment["KERAS_BACKEND"] = backend
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, model, way, os.path.join(folder, "run")],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
    return next(float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("TOOK"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="processes for each model and way")
    parser.add_argument("--backend", choices=["tensorflow", "torch"], default="tensorflow")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("Expected at least 1 run.")
    on_torch = options.backend == "torch"
    print(conditions(*(ON_TORCH if on_torch else ())), flush=True)
    where = " on torch" if on_torch else ""
    aims, rows = Aims(), []
    for model in MODELS:
        runs = [[measure(model, way, options.backend) for way in WAYS] for _ in range(options.runs)]
        plain, ours = (statistics.median(run[column] for run in runs) for column in range(len(WAYS)))
        ratio = statistics.median(ours / plain for plain, ours in runs)
        rows.append([model, f"{plain:.2f}", f"{ours:.2f}", f"{ratio:.3f}"])
        tell(f"first step of a {model} model{where}", "plain Keras", ratio, better="less")
        aims.check(f"first step of a {model} model, over one of plain Keras", ratio, "at most", AIM)
    print(table(["seconds of processor time, the median", "plain Keras", "with the callback", "ratio"], rows))
    return aims.report()


if __name__ == "__main__":
    sys.exit(main())
