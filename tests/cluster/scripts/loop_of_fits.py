"""Five fits of one epoch each, in a loop, as people write it; preempted before one of its steps if it is told to.

Usage: ``loop_of_fits.py {one callback,one directory,directories} DIRECTORY [STEP]``
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import keras
import numpy as np

from keras_preempt import PreemptionCallback
from tests.fits import Doing

how, directory, strike = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else -1
FITS, STEPS = 5, 4


class Strike(Doing):
    """Sends this process SIGTERM before a step, counted over all fits."""

    steps = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.steps == strike:
            os.kill(os.getpid(), signal.SIGTERM)
        self.steps += 1
        os.write(
            1, b"RAN\n"
        )  # At once: another thread may write of the notice between a word and its line's end.


keras.utils.set_random_seed(1)
x = np.arange(32, dtype="float32").reshape(16, 2) / 32
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
struck, only = Strike(), PreemptionCallback(directory) if how == "one callback" else None
for number in range(FITS):
    place = f"{directory}/{number}" if how == "directories" else directory
    ours = only or PreemptionCallback(place)
    model.fit(x, x.sum(axis=1), batch_size=16 // STEPS, epochs=1, verbose=0, callbacks=[struck, ours])
print("ENDED WITH", [weight.tolist() for weight in model.get_weights()], flush=True)
