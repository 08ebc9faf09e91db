"""Runs a script as it is, as a task of a job of these tests: ``python training.py SCRIPT ARGUMENTS``.

Slurm keeps the environment of a job over a restart. Here the drill strikes in the first start only, and each start has
a record of its own. Slurm looks at the time limits of jobs twice a minute, so that a signal may be long in coming.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from keras_preempt.drilled import rehearsal
from keras_preempt.process import environment

rehearsal.ARRIVAL = 180.0
if restart := os.environ.get("SLURM_RESTART_COUNT"):
    os.environ.pop(environment.DRILL, None)
    os.environ[environment.INCARNATION] = restart
sys.argv = sys.argv[1:]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
