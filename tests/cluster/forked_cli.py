"""``keras-preempt`` whose workers come from the fork server, with TensorFlow imported already.

They are processes of their own all the same, started and preempted in the same way; `tests.cluster.fork_server` says
what they share. HANG_STEP_SECONDS replaces the 5 minutes that ``--hang auto`` leaves a step.
"""

from __future__ import annotations

import os
import sys

from keras_preempt.cli.main import main
from keras_preempt.cluster import hangs, supervisor
from tests.cluster.forked import ForkedCluster

if __name__ == "__main__":
    supervisor.LocalCluster = ForkedCluster
    hangs._OF_A_STEP = float(os.environ.get("HANG_STEP_SECONDS", hangs._OF_A_STEP))
    sys.exit(main())
