"""How long it takes on JAX from the notice to the end of the job, compared with Orbax' check for preemption.

Trains the same small model with the same jitted step in local processes that are connected by JAX: once with
`model.fit` and `PreemptionCallback`, once in a loop of its own that asks `CheckpointManager.reached_preemption`
after each step, and saves and leaves where that says so. A random process gets SIGTERM at a random moment of a
random step. The rest is as in notice_to_exit.py. Orbax has to be installed: pip install orbax-checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from figures import ON_JAX
from needs import require
from notice_to_exit import Contest, run
from preemption import ORBAX, OURS_ON_JAX

CONTEST = Contest(OURS_ON_JAX, ORBAX, "Orbax' CheckpointManager", "Orbax'", (*ON_JAX, "orbax-checkpoint"))


def main(arguments: Sequence[str] | None = None) -> int:
    require("orbax-checkpoint", "orbax.checkpoint")
    return run(CONTEST, __doc__ or "", [2], arguments)


if __name__ == "__main__":
    sys.exit(main())
