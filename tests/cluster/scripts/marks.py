"""Says where a fit is, draws random numbers there, and sends this process signals at exact places.

``TRAIN_STRIKES`` holds JSON: a list of ``{"at": text of a mark, "members": [...], "signal": name,
"after": seconds or null, "settle": bool, "commits": number}``. A strike sends the signal to the members named
when they are at that mark, once: at once, or that many seconds later from a thread while training goes on.
One that settles then waits until the workers have agreed on where to stop, so that the notice comes first and
the boundary after.
One with commits waits before it until this worker has told so many since it began.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from keras_preempt.checkpoint import failpoints
from tests.cluster.small_fit import InEpochs, await_

MEMBER = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
SETTLED_WITHIN = 30.0
SAVING_LASTS = 0.2
"""Seconds; a signal from outside comes some milliseconds after the line that asks for it."""


class Marks(InEpochs):
    """Prints a line at every hook; what it draws makes the random state move on with every step."""

    def __init__(self, directory: str, say: bool, slow: float) -> None:
        super().__init__()
        self._events = Path(directory, "events")
        self._say = say
        self._slow = slow
        self._strikes = [
            s for s in json.loads(os.environ.get("TRAIN_STRIKES", "[]")) if MEMBER in s["members"]
        ]
        self._training = False
        self._earlier = {kind: self._told(kind) for kind in ("plan", "commit")}

    def mark(self, text: str) -> None:
        if self._say:
            print(f"AT {text}", flush=True)
        for strike in [s for s in self._strikes if s["at"] == text]:
            self._strikes.remove(strike)
            number = signal.Signals[strike["signal"]]
            self._await("commit", self._earlier["commit"] + strike["commits"])
            if strike["after"] is not None:
                timer = threading.Timer(strike["after"], os.kill, (os.getpid(), number))
                timer.daemon = True
                timer.start()
                continue
            print(f"STRUCK {text}", flush=True)
            os.kill(os.getpid(), number)
            if strike["settle"] and text != "tracing":  # That comes before there is anything to agree on.
                self._await("plan", self._earlier["plan"] + 1)

    def mark_saves(self) -> None:
        """From now on says when this worker's part is written and the manifest is not, and lets that last a moment."""

        def saving() -> None:
            # By itself, also from another thread: what is printed reaches the descriptor in whole lines.
            os.write(sys.stdout.fileno(), b"AT saving\n")
            time.sleep(SAVING_LASTS)

        failpoints.set_hook("save.after-part", saving)

    def tracing(self) -> None:
        """To be called where a training step is traced, which a fit that is watched over does as it begins."""
        if self._training:
            self._training = False
            self.mark("tracing")

    def _told(self, kind: str) -> int:
        logs = sorted(self._events.glob(f"*.w{MEMBER:05d}.jsonl"))
        return sum(path.read_text().count(f'"event":"{kind}"') for path in logs)

    def _await(self, kind: str, count: int) -> None:
        await_(lambda: self._told(kind) >= count, SETTLED_WITHIN, f"no event of the kind {kind} came")

    def on_train_begin(self, logs=None):
        self._training = True
        self.mark("train_begin")

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        random.random()
        np.random.rand()
        self.mark(f"epoch {epoch}")

    def on_train_batch_begin(self, batch, logs=None):
        self.mark(f"batch {self.epoch} {batch}")
        self._training = True
        if self._slow:
            time.sleep(self._slow)

    def on_train_batch_end(self, batch, logs=None):
        self._training = False
        drawn = [random.random(), float(np.random.rand())]
        if self._say:
            # In one piece: a log line of another thread must not come between a text and its end of line.
            sys.stdout.write(f"RAN {self.epoch} {batch} {json.dumps(logs)} {drawn}\n")
            sys.stdout.flush()
        self.mark(f"done {self.epoch} {batch}")

    def on_test_begin(self, logs=None):
        self.mark(f"test {self.epoch}")

    def on_test_batch_begin(self, batch, logs=None):
        self.mark(f"test_batch {self.epoch} {batch}")
        if self._slow:
            time.sleep(self._slow)

    def on_test_end(self, logs=None):
        self.mark(f"test_end {self.epoch}")

    def on_epoch_end(self, epoch, logs=None):
        self.mark(f"epoch_end {epoch}")
