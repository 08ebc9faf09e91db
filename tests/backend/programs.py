"""Programs that a test runs in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys

_WITHOUT = """
import sys
for finder in list(sys.meta_path):
    def find(name, path=None, target=None, original=finder.find_spec):
        return None if name.split(".")[0] in {blocked!r} else original(name, path, target)
    finder.find_spec = find
"""


def python(
    program: str, *arguments: object, without: tuple[str, ...] = (), timeout: float = 300.0, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program in which the packages `without` are not installed."""
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(blocked=without) + program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", **env},
    )
