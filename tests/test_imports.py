"""A training script waits for nothing but what its fit needs: no cloud's client, no command, no fake."""

from __future__ import annotations

import json
import subprocess
import sys

_PROGRAM = """
import json, sys
import keras, tensorflow
known = set(sys.modules)
from keras_preempt import PreemptionCallback
from keras_preempt.backend.seam import backend
backend()
PreemptionCallback(sys.argv[1])
print(json.dumps(sorted(set(sys.modules) - known)))
"""

ROOMS_OF_A_FIT = {
    "agreement",
    "backend",
    "callback",
    "checkpoint",
    "drilled",  # Its door, see below.
    "notices",
    "process",
    "report",
    "state",
    "training",
}


def test_a_fit_with_checkpoints_in_a_directory_imports_only_what_it_needs() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "runs/1"], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    added = json.loads(run.stdout.splitlines()[-1])
    others = {name.partition(".")[0] for name in added} - set(sys.stdlib_module_names)
    # Beside the package: what shows progress, and the checksum of every byte.
    assert others - {"keras_preempt"} <= {"rich", "google_crc32c"}
    rooms = {name.split(".")[1] for name in added if name.startswith("keras_preempt.")}
    assert rooms == ROOMS_OF_A_FIT
    drilled = {name for name in added if name.startswith("keras_preempt.drilled")}
    assert drilled == {"keras_preempt.drilled", "keras_preempt.drilled.hooks"}
    gcs = [name for name in added if name.startswith("keras_preempt.checkpoint.storage.gcs")]
    assert gcs == []
