"""Continues a directory of release 0.1.0 to its end: `first_release.py DIRECTORY OUT`.

The directory is that of a fit on NumPy arrays, preempted before the last two of eight steps. OUT gets the variables
at the end. It runs under that release as well, which has written the end that is stored beside the directory.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from keras_preempt import PreemptionCallback

STEPS, BATCH = 4, 4
X = np.arange(STEPS * BATCH * 2, dtype="float32").reshape(-1, 2) / 32
Y = X.sum(axis=1)


def make_model() -> keras.Model:
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(3, name="hidden"),
            layers.BatchNormalization(name="norm"),
            layers.Dense(1, name="last"),
        ],
        name="small",
    )
    model.compile(keras.optimizers.Adam(name="adam"), "mse")
    return model


def variables(model: keras.Model) -> dict[str, keras.Variable]:
    named = {f"model/{variable.path}": variable for variable in model.variables}
    return {**named, **{f"optimizer/{variable.path}": variable for variable in model.optimizer.variables}}


def main() -> None:
    directory, out = sys.argv[1:]
    model = make_model()
    ran = model.fit(
        X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[PreemptionCallback(directory)]
    )
    end = {name: np.asarray(value) for name, value in variables(model).items()}
    np.savez(out, **end, epochs=np.asarray(ran.epoch))


main()
