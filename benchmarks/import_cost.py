"""What the package adds to the imports of a training script, beside Keras and TensorFlow.

Each measurement is a process of its own. It imports Keras and TensorFlow, and then what `fit` with a
PreemptionCallback needs: for checkpoints in a directory, and for those in a bucket, which adds Google's client. What
the package adds by itself, without that client, is judged in seconds as well.
Processor time is measured, since the files are read before, and other programs would count in the time by the clock.
Compiled modules are kept, as an installer keeps them: under PYTHONDONTWRITEBYTECODE a checkout of this package would be
compiled in each process, unlike Keras and TensorFlow, and most of what is measured would be the compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from figures import Aims, conditions, table, tell

DIRECTORY, BUCKET, CLIENT = "a directory", "a bucket", "Google's client"

AIMS = {DIRECTORY: 0.1, BUCKET: 0.15}
"""The most that the package may add, as a share of the import of Keras and TensorFlow."""

SECONDS = 0.3
"""What the package itself adds beyond Keras and TensorFlow has to be less."""

IMPORTS = {
    DIRECTORY: "import keras_preempt.callback, keras_preempt.backend.seam as seam; seam.backend()",
    CLIENT: "import google.cloud.storage",
    BUCKET: "import keras_preempt.checkpoint.storage.gcs",
}
"""In this order: each adds to those before it."""

_PROGRAM = f"""
import json, time
began = time.process_time()
import keras, tensorflow
times = [time.process_time() - began]
for statement in {list(IMPORTS.values())!r}:
    began = time.process_time()
    exec(statement)
    times.append(time.process_time() - began)
print(json.dumps(times))
"""


@dataclass(frozen=True)
class Imported:
    """Seconds of processor time that the imports of one process took.

    Attributes:
        base: Keras and TensorFlow.
        added: What checkpoints in each place add.
        client: Google's client, which is part of what those in a bucket add.
    """

    base: float
    added: dict[str, float]
    client: float

    def own(self, place: str) -> float:
        """What the package itself adds."""
        return self.added[place] - (self.client if place == BUCKET else 0.0)


def measure() -> Imported:
    """Imports all of it in a new process."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, env=environment
    )
    base, directory, client, bucket = json.loads(done.stdout.splitlines()[-1])
    return Imported(base, {DIRECTORY: directory, BUCKET: directory + client + bucket}, client)


def report(runs: Sequence[Imported], aims: Aims) -> str:
    """Returns the table, and judges what the package adds: as a share, and by itself in seconds."""
    base = statistics.median(run.base for run in runs)
    rows = [["Keras and TensorFlow", f"{base:.2f}", "", "1.00"]]
    for place in (DIRECTORY, BUCKET):
        added = statistics.median(run.added[place] for run in runs)
        own = statistics.median(run.own(place) for run in runs)
        share = statistics.median(run.added[place] / run.base for run in runs)
        rows.append([f"keras_preempt, checkpoints in {place}", f"{added:.2f}", f"{own:.2f}", f"{share:.3f}"])
        tell(f"import for checkpoints in {place}", "Keras and TensorFlow", share, better="less")
        aims.check(
            f"import for checkpoints in {place}, beside Keras and TensorFlow", share, "at most", AIMS[place]
        )
        aims.check(f"import of the package itself for checkpoints in {place}", own, "below", SECONDS, " s")
    return table(["seconds of processor time, the median", "import", "of it the package", "ratio"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="processes")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("Expected at least 1 run.")
    print(conditions(), flush=True)
    measure()  # Compiles what was not compiled before.
    runs = [measure() for _ in range(options.runs)]
    aims = Aims()
    print(report(runs, aims))
    return aims.report()


if __name__ == "__main__":
    sys.exit(main())
