"""``keras-preempt`` whose workers come from the fork server, with TensorFlow imported already.

They are processes of their own all the same, started and preempted in the same way; `tests.cluster.fork_server` says
what they share.
"""

from __future__ import annotations

import sys

from keras_preempt.cli.main import main
from keras_preempt.cluster import supervisor
from tests.cluster.forked import ForkedCluster

if __name__ == "__main__":
    supervisor.LocalCluster = ForkedCluster
    sys.exit(main())
