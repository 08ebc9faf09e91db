"""`make slurm`: runs the tests that need Slurm, or says in one line what to install for them."""

from __future__ import annotations

import sys

import pytest

from tests.slurm.daemons import why_not

if __name__ == "__main__":
    if why := why_not():
        print(f"Skipped: {why}")
    else:
        sys.exit(pytest.main(["-m", "chaos", "tests/slurm", *sys.argv[1:]]))
