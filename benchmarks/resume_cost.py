"""What a resume costs: from the start of a process to the end of its first new step, part by part.

Trains a small convolutional network, preempts it in the middle of an epoch, starts it again, and splits the time of
that second start into the parts that the process itself has recorded:

- import: the start of Python, TensorFlow, Keras and this package;
- cluster: until all workers have found each other;
- build: model, optimizer and input pipeline are made, and TensorFlow traces the train step; under a strategy, Keras
  draws a batch to look at;
- restore: the workers agree on a checkpoint, read, verify and restore it;
- replay: the input is brought back to where it was;
- compile: TensorFlow compiles the train step, which its first call waits for;
- first step: what a step takes later on (the median).

Six ways: one device whose input continues from the iterator's saved state, one device whose input has to be
replayed (a random operation in it has a state that TensorFlow cannot save), workers under
MultiWorkerMirroredStrategy, replayed as well, and three epochs of arrays, preempted in the last one: on one device,
under MirroredStrategy with two replicas, and with the workers. They take turns, so that a busy machine slows all.

Then `resume_position.py`: the same by how far training had come.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import resume_position
from figures import Aims, conditions, table, tell
from resumption import ARRAYS, PARTS, REPLAY, STATE, Job, Resumption, ResumptionFailed, resume

_SHOWN = {STATE: "iterator state", REPLAY: "replay", ARRAYS: "3 epochs of arrays"}


def title(job: Job) -> str:
    """Names a way in a header."""
    where = job.place if job.workers == 1 else f"{job.workers} workers"
    return f"{where}, {_SHOWN[job.way]}"


def median_run(runs: Sequence[Resumption]) -> Resumption:
    """The run whose whole is the median (of an even number, the larger one): its parts sum up, as medians would not."""
    return sorted(runs, key=lambda run: run.whole)[len(runs) // 2]


def report(results: dict[Job, list[Resumption]]) -> str:
    """Returns both tables; there is a run of every job."""
    jobs = list(results)
    chosen = {job: median_run(runs) for job, runs in results.items()}
    rows = [[part, *(f"{chosen[job].parts[part]:.2f}" for job in jobs)] for part in PARTS]
    rows.append(["whole", *(f"{chosen[job].whole:.2f}" for job in jobs)])
    for name, limit in (("least whole", min), ("most", max)):
        rows.append([name, *(f"{limit(run.whole for run in results[job]):.2f}" for job in jobs)])
    first = table(["seconds, of the median run", *map(title, jobs)], rows)
    costs = []
    for job in jobs:
        brought_back = 1000 * chosen[job].parts["replay"]
        a_batch, a_step = brought_back / chosen[job].batches, 1000 * chosen[job].step
        costs.append(
            [
                title(job),
                f"{brought_back:.0f}",
                f"{a_batch:.2f}",
                f"{a_step:.2f}",
                f"{a_batch / a_step:.3f}",
            ]
        )
        if job.way == REPLAY:
            tell(f"replay of a batch, {title(job)}", "training on it", a_batch / a_step, better="less")
        if job.way == ARRAYS:
            tell(f"resuming on {title(job)}", "training on a batch", brought_back / a_step, better="less")
    header = ["milliseconds to bring the input back", "in all", "a batch", "training, a batch", "ratio"]
    by_state = next(chosen[job] for job in jobs if job.workers == 1 and job.way == STATE)
    by_replay = next(chosen[job] for job in jobs if job.workers == 1 and job.way == REPLAY)
    beside = by_state.parts["replay"] / by_replay.parts["replay"]
    tell("iterator state, 1 device", f"replay of {jobs[0].batches} batches", beside, better="less")
    return (
        f"{first}\n\n{table(header, costs)}\n\nOn one device, the iterator's state takes {beside:.2f} x the time of "
        f"the replay of {jobs[0].batches} batches."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batches", type=int, default=200, help="trained on before the preemption")
    parser.add_argument("--after", type=int, default=20, help="steps after the resume, at least 5")
    parser.add_argument("--runs", type=int, default=3, help="runs of each way")
    parser.add_argument("--workers", type=int, default=2, help="processes of the cluster")
    parser.add_argument(
        "--positions", type=int, nargs="*", default=[100, 1000, 10000], help="batches, for the second table"
    )
    parser.add_argument("--quick", action="store_true", help="one short run of each way")
    options = parser.parse_args(arguments)
    if options.quick:
        options.batches, options.after, options.runs, options.positions = 20, 5, 1, [20, 60]
    if options.batches < 3 or options.after < 5 or options.runs < 1 or options.workers < 2:
        parser.error("Expected at least 3 batches, 5 steps after the resume, 1 run and 2 workers.")
    began = time.monotonic()
    print(conditions(), flush=True)
    sizes = (options.batches, options.after)
    jobs = [Job(1, STATE, *sizes), Job(1, REPLAY, *sizes), Job(options.workers, REPLAY, *sizes)]
    jobs += [Job(1, ARRAYS, *sizes), Job(1, ARRAYS, *sizes, mirrored=True)]
    jobs += [Job(options.workers, ARRAYS, *sizes)]
    results: dict[Job, list[Resumption]] = {job: [] for job in jobs}
    for _ in range(options.runs):
        for job in jobs:
            try:
                results[job].append(resume(job))
            except ResumptionFailed as error:
                print(f"FAILED: {error}", file=sys.stderr)
                return 1
    print(
        f"{options.runs} runs each, {time.monotonic() - began:.0f} s in all; preempted after {options.batches} batches "
        "of 32 images of 32 x 32 pixels\n"
    )
    print(report(results), flush=True)
    if not options.positions:
        return 0
    try:
        by_position = resume_position.run(options.positions, options.workers, resume)
    except ResumptionFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    aims = Aims(apply=not options.quick)
    print(
        f"\n{resume_position.report(by_position, aims)}\n\n{resume_position.report_arrays(by_position, aims)}"
    )
    return aims.report()


if __name__ == "__main__":
    sys.exit(main())
