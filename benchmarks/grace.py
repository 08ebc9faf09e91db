"""How much of a grace period training gets, and how much is left when the job is gone; with TensorFlow's handler too.

Trains the same small model with the same train step on 2 local workers under MultiWorkerMirroredStrategy, once
with `model.fit` and `PreemptionCallback`, once in a custom loop with
`tf.distribute.experimental.PreemptionCheckpointHandler`, both with the same grace period. A random worker gets
SIGTERM at a random moment of a random step. Prints:

- used: when the last step had ended, since the signal was sent, as a part of the grace period;
- committed: seconds left when the second checkpoint was complete;
- left: seconds left when the last process had ended; below 0 it would have been killed before.

The two take turns, so that a busy machine slows both. The exit status is 1 if a run of ours failed or ended too
late, or if the median of what ours used is below the aim.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from figures import conditions, table, tell
from preemption import OURS, TENSORFLOW, Job, Preemption, PreemptionFailed, preempt

AIM = 0.9
"""Part of a grace of 30 s that training gets, with steps of 50 ms."""

WORKERS = 2

_Results = dict[str, list[Preemption]]


def measure(scripts: Sequence[str], runs: int, job: Job, seed: int) -> tuple[_Results, int]:
    """Runs everything, turn by turn.

    Returns:
        The runs that ended as preempted ones do, by script; and how many of ours did not.
    """
    results: _Results = {OURS: [], TENSORFLOW: []}
    failed = 0
    for number in range(runs):
        for script in scripts if number % 2 == 0 else reversed(scripts):
            try:
                run = preempt(script, WORKERS, job, f"{seed}/{number}")  # The same moments for both.
            except PreemptionFailed as error:
                failed += script == OURS
                print(f"FAILED: {error}", file=sys.stderr)
            else:
                results[script].append(run)
    return results, failed


def report(results: _Results, grace: float) -> str:
    """Returns the table."""
    quantities: tuple[tuple[str, Callable[[Preemption], float]], ...] = (
        ("used, % of the grace", lambda run: 100 * run.aligned / grace),
        ("committed, s left", lambda run: grace - run.committed),
        ("last process gone, s left", lambda run: grace - run.all_gone),
    )
    rows = []
    for title, quantity in quantities:
        cells = [title]
        for script in (OURS, TENSORFLOW):
            values = [quantity(run) for run in results[script]]
            cells += (
                [f"{value:.2f}" for value in (statistics.median(values), min(values))]
                if values
                else ["-"] * 2
            )
        rows.append(cells)
    ours, theirs = (
        [run.aligned for run in results[script]] if results[script] else [] for script in (OURS, TENSORFLOW)
    )
    if ours and theirs:
        ratio = statistics.median(ours) / statistics.median(theirs)
        tell("training within the grace period", "TensorFlow's handler, which is late", ratio, better="more")
    return table([f"grace of {grace:g} s", "ours p50", "least", "TensorFlow's p50", "least"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="runs of each contestant")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds of the grace period")
    parser.add_argument("--step", type=float, default=0.05, help="seconds that each step sleeps")
    parser.add_argument("--width", type=int, default=512, help="units of each hidden layer")
    parser.add_argument("--seed", type=int, default=0, help="draws workers, steps and moments")
    parser.add_argument("--quick", action="store_true", help="one run of ours alone with 10 s, and no aim")
    options = parser.parse_args(arguments)
    if options.quick:
        options.runs, options.grace = 1, 10.0
    if options.runs < 1 or options.grace <= 0 or options.step <= 0 or options.width < 1:
        parser.error("Expected at least 1 run, a grace and a step longer than 0 and a width of at least 1.")
    began = time.monotonic()
    print(conditions(), flush=True)
    job = Job(options.step, options.width, options.grace)
    scripts = [OURS] if options.quick else [OURS, TENSORFLOW]
    results, failed = measure(scripts, options.runs, job, options.seed)
    print(
        f"{WORKERS} workers, {options.runs} runs each, {time.monotonic() - began:.0f} s in all, steps of "
        f"{options.step * 1000:.0f} ms and their arithmetic\n"
    )
    print(report(results, options.grace))
    late = sum(run.all_gone > options.grace for run in results[OURS])
    used = statistics.median([run.aligned / options.grace for run in results[OURS]] or [0.0])
    aim = "" if options.quick else f" Aim: {AIM:.0%} used."
    print(f"\nOurs: {late} runs too late, {failed} failed.{aim}")
    return 1 if late or failed or (used < AIM and not options.quick) else 0


if __name__ == "__main__":
    sys.exit(main())
