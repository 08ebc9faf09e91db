"""A fit with small steps, in one epoch that nobody waits for to end, and a notice in step 100.

Run as: short_grace.py DIRECTORY GRACE JUMP. The clock of the day is set by JUMP seconds once the first save is planned.
Says ``ENDED <steps>`` at the end, with the steps that were run.
"""

from __future__ import annotations

import os
import sys
import time

DIRECTORY, GRACE, JUMP = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])

_real, _jumped = time.time, [0.0]
time.time = lambda: _real() + _jumped[0]  # Before anybody imports it: all of Python sees the jump.

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from pathlib import Path  # noqa: E402

import keras  # noqa: E402
import numpy as np  # noqa: E402

from keras_preempt import PreemptionCallback, TerminationConfig  # noqa: E402
from tests.cluster.noticed_fit import sigterm  # noqa: E402
from tests.fits import Doing  # noqa: E402


class Program(Doing):
    steps = 0

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 100:
            sigterm()
        if batch >= 100 and not _jumped[0]:
            logs = Path(DIRECTORY).glob("events/*")
            _jumped[0] = JUMP if any('"event":"plan"' in log.read_text() for log in logs) else 0.0
        time.sleep(0.02)

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1


program = Program()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.ones((20_000, 2), "float32")
ours = PreemptionCallback(DIRECTORY, termination=TerminationConfig(grace_period=GRACE))
try:
    model.fit(x, x[:, :1], batch_size=1, shuffle=False, verbose=0, callbacks=[program, ours])
finally:
    print("ENDED", program.steps, flush=True)
