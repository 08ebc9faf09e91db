"""Continues a directory of release 0.1.0, and trains the same steps without it: `first_release.py DIRECTORY OUT`.

The directory is that of a fit on NumPy arrays, preempted before the last two of eight steps. OUT gets the variables at
the end of both.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from keras_preempt import PreemptionCallback
from keras_preempt.checkpoint.reader import committed, load
from keras_preempt.checkpoint.storage.local import LocalStore

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
    store = LocalStore(directory)
    saved = load(store, committed(store)[0], 0, 1).tensors

    model = make_model()
    ran = model.fit(
        X,
        Y,
        batch_size=BATCH,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[PreemptionCallback(directory)],
    )
    end = {f"continued/{name}": np.asarray(value) for name, value in variables(model).items()}
    end["epochs"] = np.asarray(ran.epoch)

    keras.utils.clear_session()
    model = make_model()
    for name, variable in variables(model).items():
        variable.assign(saved[name])
    done = int(saved["optimizer/adam/iteration"]) % STEPS * BATCH
    model.fit(X[done:], Y[done:], batch_size=BATCH, shuffle=False, verbose=0)
    end.update({f"plain/{name}": np.asarray(value) for name, value in variables(model).items()})
    np.savez(out, **end)


main()
