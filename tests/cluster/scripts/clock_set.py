"""A fit under notice, with a grace period, on a machine whose clock of the day is set while the countdown runs.

Run as: clock_set.py DIRECTORY SECONDS GRACE. The clock jumps by so many seconds once the first save is planned. Says
``SET <steps>`` then, ``ENDED <steps>`` at the end, both with the steps that were run.
"""

from __future__ import annotations

import os
import signal
import sys
import time

DIRECTORY, JUMP, GRACE = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])

_real, _jumped = time.time, [0.0]
time.time = lambda: _real() + _jumped[0]  # Before anybody imports it: all of Python sees the jump.

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from pathlib import Path  # noqa: E402

import keras  # noqa: E402
import numpy as np  # noqa: E402

from keras_preempt import PreemptionCallback, TerminationConfig  # noqa: E402

STEPS = 1500


class Program(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.steps = 0
        self.set = False

    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.03)
        if batch == 10:
            os.kill(os.getpid(), signal.SIGTERM)
        planned = [path for path in Path(DIRECTORY).glob("events/*") if '"event":"plan"' in path.read_text()]
        if planned and not self.set:
            self.set = True
            _jumped[0] = JUMP
            print("SET", self.steps, flush=True)

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


program = Program()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = np.ones((STEPS, 2), "float32")
config = TerminationConfig(grace_period=GRACE)
try:
    model.fit(
        x,
        x[:, :1],
        batch_size=1,
        shuffle=False,
        verbose=0,
        callbacks=[program, PreemptionCallback(DIRECTORY, termination=config)],
    )
finally:
    print("ENDED", program.steps, flush=True)
