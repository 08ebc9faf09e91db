"""A custom loop of any number of workers under our handler.

Usage: ``handler_workers.py DIRECTORY [GRACE]``. Prints ``STEP <n>`` in each step, at last ``RESULT <json>``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

DIRECTORY, GRACE = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else None
STRATEGY: Any = tf.distribute.MultiWorkerMirroredStrategy()

from tests.cluster.handled_loop import Loop  # noqa: E402

STEPS = 60


def say(number: int) -> Any:
    return lambda: print(f"STEP {number}", flush=True)


loop = Loop(DIRECTORY, "ours", STRATEGY)
outcome = loop.train(
    {number: say(number) for number in range(STEPS)},
    steps=STEPS,
    config={"grace_period": GRACE, "exit_code": 9},
    step_seconds=0.05,
)
print("RESULT " + json.dumps(outcome, default=int), flush=True)
if outcome["ended"].startswith("SystemExit"):
    sys.exit(int(outcome["ended"].split()[1]))
