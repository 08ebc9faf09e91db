"""Runs a script as it is, as a task of a job of these tests: ``python training.py SCRIPT ARGUMENTS``.

Slurm keeps the environment of a job over a restart. Here the drill strikes, and SECONDS_A_STEP makes the steps longer,
in the first start only, and each start has a record of its own. Slurm looks at the time limits of jobs twice a minute,
so that a signal may be long in coming.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path

from keras_preempt import PreemptionCallback
from keras_preempt.drilled import rehearsal
from keras_preempt.process import environment

rehearsal.ARRIVAL = 180.0
if restart := os.environ.get("SLURM_RESTART_COUNT"):
    os.environ.pop(environment.DRILL, None)
    os.environ[environment.INCARNATION] = restart
elif seconds := float(os.environ.get("SECONDS_A_STEP", "0")):
    begins = PreemptionCallback.on_train_batch_begin

    def begins_later(self: PreemptionCallback, batch: int, logs: object = None) -> None:
        time.sleep(seconds)
        begins(self, batch)

    PreemptionCallback.on_train_batch_begin = begins_later  # type: ignore[method-assign]
sys.argv = sys.argv[1:]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
