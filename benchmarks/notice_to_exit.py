"""How long it takes from the notice to the end of the job, compared with TensorFlow's own handler.

Trains the same small model with the same train step on local workers under MultiWorkerMirroredStrategy, once
with `model.fit` and `PreemptionCallback`, once in a custom loop with
`tf.distribute.experimental.PreemptionCheckpointHandler`. A random worker gets SIGTERM at a random moment of a
random step. Prints, in milliseconds since the signal was sent:

- heard: the notified worker has taken note (TensorFlow's handler does not tell);
- aligned: the last worker stands at the step that all save at;
- committed: the checkpoint is complete;
- exit: the process of the notified worker has ended; and the last one of the job.

and the steps that were run beyond the newest one that any worker had begun when the signal was sent. The two
take turns, so that a busy machine slows both. The exit status is 1 if a run of ours failed or ran a step more.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from figures import conditions, table, tell
from preemption import OURS, TENSORFLOW, Job, Preemption, PreemptionFailed, preempt

_QUANTITIES: tuple[tuple[str, Callable[[Preemption], float | None]], ...] = (
    ("notice -> heard", lambda run: run.heard),
    ("notice -> aligned", lambda run: run.aligned),
    ("aligned -> committed", lambda run: run.committed - run.aligned),
    ("notice -> committed", lambda run: run.committed),
    ("notice -> exit, notified worker", lambda run: run.gone),
    ("notice -> exit, last worker", lambda run: run.all_gone),
)

_Results = dict[tuple[int, str], list[Preemption]]


@dataclass(frozen=True)
class Contest:
    """Two scripts that are preempted alike.

    Attributes:
        ours: The script of this package.
        theirs: The script of the peer.
        peer: Its name.
        short: Whose it is, in the genitive.
        packages: Whose versions to name; none for those of a benchmark on TensorFlow.
    """

    ours: str
    theirs: str
    peer: str
    short: str
    packages: tuple[str, ...] = ()


ON_TENSORFLOW = Contest(OURS, TENSORFLOW, "TensorFlow's handler", "TensorFlow's")


def measure(
    contest: Contest, workers: Sequence[int], runs: int, job: Job, seed: int
) -> tuple[_Results, dict[str, int]]:
    """Runs everything, turn by turn.

    Returns:
        The runs that ended well, by number of workers and script; and how many failed, by script.
    """
    scripts = (contest.ours, contest.theirs)
    results: _Results = {(count, script): [] for count in workers for script in scripts}
    failed = dict.fromkeys(scripts, 0)
    for number in range(runs):
        for count in workers:
            for script in scripts if number % 2 == 0 else scripts[::-1]:
                try:
                    # The same moments for both.
                    run = preempt(script, count, job, f"{seed}/{count}/{number}")
                except PreemptionFailed as error:
                    failed[script] += 1
                    print(f"FAILED with {count} workers: {error}", file=sys.stderr)
                else:
                    results[count, script].append(run)
    return results, failed


def report(contest: Contest, results: _Results, workers: Sequence[int]) -> str:
    """Returns the table."""
    rows = []
    for count in workers:
        ours, theirs = results[count, contest.ours], results[count, contest.theirs]
        for title, quantity in _QUANTITIES:
            mine = _milliseconds(ours, quantity)
            other = _milliseconds(theirs, quantity)
            rows.append([f"{count} workers: {title}", *_figures(mine), *_figures(other), _ratio(mine, other)])
            if mine and other:
                ratio = statistics.median(mine) / statistics.median(other)
                tell(f"{title}, {count} workers", contest.peer, ratio, better="less")
        extra = [[float(run.extra_steps) for run in runs] for runs in (ours, theirs)]
        rows.append([f"{count} workers: extra steps", *_figures(extra[0]), *_figures(extra[1]), ""])
    header = ["milliseconds", "ours p50", "p99", f"{contest.short} p50", "p99", "ratio of p50"]
    return table(header, rows)


def _milliseconds(runs: Sequence[Preemption], quantity: Callable[[Preemption], float | None]) -> list[float]:
    values = (quantity(run) for run in runs)
    return [value * 1000 for value in values if value is not None]


def _figures(values: list[float]) -> list[str]:
    """The median and the 99th percentile (nearest rank: of fewer than 100 values, the largest)."""
    if not values:
        return ["-", "-"]
    rank = -(-99 * len(values) // 100)
    return [
        f"{value:.3g}" if value < 100 else f"{value:.0f}"
        for value in (statistics.median(values), sorted(values)[rank - 1])
    ]


def _ratio(ours: list[float], theirs: list[float]) -> str:
    return f"{statistics.median(ours) / statistics.median(theirs):.2f}" if ours and theirs else ""


def main(arguments: Sequence[str] | None = None) -> int:
    return run(ON_TENSORFLOW, __doc__ or "", [2, 4], arguments)


def run(contest: Contest, about: str, workers: list[int], arguments: Sequence[str] | None) -> int:
    """Measures and reports one contest; returns the exit status.

    Args:
        contest: Who takes part.
        about: What the program says of itself.
        workers: The sizes of the cluster if none are asked for.
        arguments: Of the program.
    """
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    parser.add_argument(
        "--workers", type=int, nargs="+", default=workers, help="sizes of the cluster, from 2"
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each size and contestant")
    parser.add_argument("--step", type=float, default=0.05, help="seconds that each step sleeps")
    parser.add_argument("--width", type=int, default=512, help="units of each hidden layer")
    parser.add_argument("--seed", type=int, default=0, help="draws workers, steps and moments")
    options = parser.parse_args(arguments)
    if min(options.workers) < 2 or options.runs < 1 or options.step <= 0 or options.width < 1:
        parser.error("Expected at least 2 workers, 1 run, a step longer than 0 and a width of at least 1.")
    began = time.monotonic()
    print(conditions(*contest.packages), flush=True)
    job = Job(options.step, options.width)
    results, failed = measure(contest, options.workers, options.runs, job, options.seed)
    exact = "" if options.runs >= 100 else f"; p99 of so few is the largest of {options.runs}"
    print(
        f"{options.runs} runs each, {time.monotonic() - began:.0f} s in all, steps of {options.step * 1000:.0f} ms "
        f"and their arithmetic{exact}\n"
    )
    print(report(contest, results, options.workers))
    extra = sum(
        run.extra_steps for (_, script), runs in results.items() if script == contest.ours for run in runs
    )
    print(
        f"\nOurs: {extra} extra steps, {failed[contest.ours]} failed runs; "
        f"{contest.short}: {failed[contest.theirs]} failed runs."
    )
    return 1 if extra or failed[contest.ours] else 0


if __name__ == "__main__":
    sys.exit(main())
