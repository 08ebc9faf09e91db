"""`make slurm`: runs the tests that need Slurm, or says in one line what to install for them."""

from __future__ import annotations

import os
import sys

from tests.slurm.daemons import why_not

if __name__ == "__main__":
    if why := why_not():
        print(f"Skipped: {why}")
    else:
        # A process of its own: this one has imported the package, whose plugin pytest wants to import itself.
        os.execv(
            sys.executable, [sys.executable, "-m", "pytest", "-m", "chaos", "tests/slurm", *sys.argv[1:]]
        )
