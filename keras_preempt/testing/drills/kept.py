"""Becomes the command line, and ends with the process that has started it: a test that is killed leaves no drill.

``python -m keras_preempt.testing.drills.kept PARENT ARGUMENT...`` is ``keras-preempt ARGUMENT...``.
"""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main(parent: int, arguments: list[str]) -> None:
    """Asks the kernel for a SIGTERM when the parent ends, and becomes the command. Linux only; elsewhere the latter."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # It ended before.
            sys.exit(128 + signal.SIGTERM)
    os.execv(sys.executable, [sys.executable, "-m", "keras_preempt", *arguments])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
