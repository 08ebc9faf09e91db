"""A fit that is preempted once, or resumed, and records which functions of the package it enters.

``python traced_fit.py DIRECTORY WATCHED RESULT [HEARD]``: WATCHED is JSON, a list of functions, each as file and first
line. RESULT becomes JSON, the list of calls of these functions in order, each as file, first line and the file that
called it. With HEARD, a function as ``FILE:LINE``, the fit sends itself SIGTERM after its fourth step, waits until that
function is entered, and records only what comes after the signal; without, it records everything.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import keras
import numpy as np

import keras_preempt
from tests.fits import Doing

PACKAGE = str(Path(keras_preempt.__file__).parent) + os.sep
STRUCK_AFTER = 3


class Tracer:
    """Records the calls of some functions, in all threads that begin after it was started."""

    def __init__(self, watched: list[tuple[str, int]]) -> None:
        self._watched = set(watched)
        self.calls: list[tuple[str, int, str, bool]] = []
        self.entered = {function: threading.Event() for function in watched}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        function = (code.co_filename, code.co_firstlineno)
        if event != "call" or function not in self._watched:
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        in_main = threading.current_thread() is threading.main_thread()
        self.calls.append((*function, "" if caller is None else caller.f_code.co_filename, in_main))
        self.entered[function].set()


def strike(batch: int, tracer: Tracer, heard: tuple[str, int]) -> None:
    """Sends SIGTERM after a step, and lets training continue when the signal was heard."""
    if batch == STRUCK_AFTER:
        tracer.calls.clear()
        tracer.entered[heard].clear()
        os.kill(os.getpid(), signal.SIGTERM)
        assert tracer.entered[heard].wait(60), "the signal was not heard"


def main(directory: str, watched: str, result: str, heard: str = "") -> None:
    tracer = Tracer([tuple(each) for each in json.loads(Path(watched).read_text())])
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.zeros((64, 4), np.float32)
    callbacks: list[keras.callbacks.Callback] = [keras_preempt.PreemptionCallback(directory)]
    if heard:
        file, _, line = heard.rpartition(":")
        place = file, int(line)
        callbacks.append(Doing(on_train_batch_end=lambda batch, logs: strike(batch, tracer, place)))
    try:
        model.fit(x, x[:, :1], batch_size=8, verbose=0, callbacks=callbacks)
    finally:
        sys.setprofile(None)
        Path(result).write_text(json.dumps(tracer.calls))


if __name__ == "__main__":
    main(*sys.argv[1:])
