"""What the package adds to the imports of a training script, beside Keras and TensorFlow.

Each measurement is a process of its own. It imports Keras and TensorFlow, and then what `fit` with a
PreemptionCallback needs: for checkpoints in a directory, and for those in a bucket, which adds Google's client.
Processor time is measured, since the files are read before, and other programs would count in the time by the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence

from figures import Aims, conditions, table, tell

DIRECTORY, BUCKET = "a directory", "a bucket"

AIMS = {DIRECTORY: 0.1, BUCKET: 0.15}
"""The most that the package may add, as a share of the import of Keras and TensorFlow."""

IMPORTS = {
    DIRECTORY: "import keras_preempt.callback, keras_preempt.backend.seam as seam; seam.backend()",
    BUCKET: "import keras_preempt.checkpoint.storage.gcs",
}

_PROGRAM = f"""
import json, time
began = time.process_time()
import keras, tensorflow
times = [time.process_time() - began]
for statement in {[IMPORTS[DIRECTORY], IMPORTS[BUCKET]]!r}:
    began = time.process_time()
    exec(statement)
    times.append(time.process_time() - began)
print(json.dumps(times))
"""


def measure() -> tuple[float, float, float]:
    """Returns the seconds of processor time for Keras and TensorFlow, and what a directory and a bucket add."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, env=environment
    )
    base, directory, client = json.loads(done.stdout.splitlines()[-1])
    return base, directory, directory + client


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="processes")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("Expected at least 1 run.")
    print(conditions(), flush=True)
    measure()  # Compiles what was not compiled before.
    runs = [measure() for _ in range(options.runs)]
    base = statistics.median(run[0] for run in runs)
    aims, rows = Aims(), [["Keras and TensorFlow", f"{base:.2f}", "1.00"]]
    for place, column in ((DIRECTORY, 1), (BUCKET, 2)):
        added = statistics.median(run[column] for run in runs)
        share = statistics.median(run[column] / run[0] for run in runs)
        rows.append([f"keras_preempt, checkpoints in {place}", f"{added:.2f}", f"{share:.3f}"])
        tell(f"import for checkpoints in {place}", "Keras and TensorFlow", share, better="less")
        aims.check(
            f"import for checkpoints in {place}, beside Keras and TensorFlow", share, "at most", AIMS[place]
        )
    print(table(["seconds of processor time, the median", "import", "ratio"], rows))
    return aims.report()


if __name__ == "__main__":
    sys.exit(main())
