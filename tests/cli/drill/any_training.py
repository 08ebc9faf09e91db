"""A trainer that knows nothing of this package: NumPy, a checkpoint of its own at SIGTERM, and a resume from it.

FAULT in its environment makes it behave badly; LEAVES is the exit status after a notice, SECONDS_PER_STEP how long a
step takes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

STEPS = 30
fault = os.environ.get("FAULT", "")
saved, out = Path(os.environ.get("SAVED", "saved.json")), Path("out")
told: list[int] = []
if fault != "deaf":
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))

rng, weights, begin = np.random.default_rng(1), np.zeros(4), 0
if saved.exists() and fault != "forgets":
    state = json.loads(saved.read_text())
    weights, begin = np.array(state["weights"]), state["step"]
    if fault != "order":
        rng.bit_generator.state = state["rng"]


def save(step: int) -> None:
    text = json.dumps({"weights": weights.tolist(), "step": step, "rng": rng.bit_generator.state})
    part = saved.with_suffix(".part")
    part.write_text(text)
    part.rename(saved)


for step in range(begin, STEPS):
    print(f"step {step} of {STEPS}", flush=True)
    signal.sigtimedwait([], float(os.environ.get("SECONDS_PER_STEP", "0.02")))
    weights = 0.9 * weights + rng.random(4)
    if fault == "unrepeatable":
        weights += int.from_bytes(os.urandom(1), "little")
    if told and fault != "late":
        save(step + 1)
        print("saved", flush=True)
        sys.exit(int(os.environ.get("LEAVES", "0")))
    if fault == "deaf":
        save(step + 1)
if fault == "crash" and begin:
    raise SystemExit(3)
if fault == "ended" and begin:
    sys.exit()
out.mkdir(exist_ok=True)
np.savez(out / "weights.npz", weights=weights)
(out / "log.txt").write_text(f"{STEPS} steps\n" + "continued\n" * (fault == "log" and begin > 0))
if fault == "broken" or (fault == "torn" and begin):
    (out / "weights.npz").write_bytes((out / "weights.npz").read_bytes()[:50])
if fault == "more" and begin:
    (out / "more.txt").write_text("")
save(STEPS)
