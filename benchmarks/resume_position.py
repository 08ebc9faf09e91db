"""What a resume costs by how far training had come: the input's part of it, and the whole, beside a replay.

Part of `resume_cost.py`. A dataset of 100 batches is shuffled and repeated, and a model whose steps take 10 ms, about
four times what drawing a batch does, is preempted after so many batches: on one device, under MirroredStrategy with two
replicas, and with two workers under MultiWorkerMirroredStrategy. Each place runs in two ways, the second time with an
operation whose state TensorFlow cannot save, so that all batches are drawn again.

The same three places train three epochs of arrays, and are preempted early in the first and late in the third.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from figures import Aims, table, tell
from resumption import ARRAYS, ONE, REPLAY, STATE, Job, Resumption

AFTER = 5
AT_MOST = 1.5
"""The most by which the input's part may grow from the first of the positions to the last."""

ON_TOP = 0.5
"""Seconds that the input may take at the last position beyond making its iterator; with arrays, in all."""

OF_ARRAYS = 900
"""The most batches that three epochs of arrays have together: those of one epoch are held in memory."""

APART = (0, 37, 74)
"""Batches by which the runs of one position are apart, the median of which counts: where a preemption falls between two
snapshots, which are some hundred batches apart, is chance."""


def jobs(positions: Sequence[int], workers: int) -> list[Job]:
    """Returns what is preempted: each place, at each position, in both ways; and early and late with arrays."""
    places = [(1, False), (1, True), (workers, False)]
    in_all = max(12 * AFTER, min(positions[-1], OF_ARRAYS))
    return [
        Job(count, way, batches, AFTER, mirrored, endless=True)
        for count, mirrored in places
        for batches in positions
        for way in (STATE, REPLAY)
    ] + [
        Job(count, ARRAYS, batches, in_all - batches, mirrored, endless=True)
        for count, mirrored in places
        for batches in (in_all // 10, in_all * 9 // 10)
    ]


def run(positions: Sequence[int], workers: int, resume: Callable[[Job], Resumption]) -> dict[Job, Resumption]:
    """Preempts and resumes each of `jobs`, several times where there are snapshots."""

    def resumed(job: Job) -> Resumption:
        apart = APART if job.way == STATE and job.place != ONE else APART[:1]
        runs = [resume(replace(job, batches=job.batches + further)) for further in apart]
        return sorted(runs, key=lambda run: run.parts["replay"])[len(runs) // 2]

    return {job: resumed(job) for job in jobs(positions, workers)}


def report(results: dict[Job, Resumption], aims: Aims) -> str:
    """Returns the table, and judges the input's part at the last position of each place."""
    rows = []
    for place in dict.fromkeys(job.place for job in results):
        parts: list[tuple[int, Resumption, Resumption]] = []
        for job, resumed in results.items():
            if job.place == place and job.way == STATE:
                replayed = next(
                    other
                    for each, other in results.items()
                    if (each.place, each.way, each.batches) == (place, REPLAY, job.batches)
                )
                parts.append((job.batches, resumed, replayed))
        for batches, resumed, replayed in parts:
            rows.append(
                [
                    f"{place}, {batches:,} batches",
                    *(f"{each.parts['replay']:.2f}" for each in (resumed, replayed)),
                    *(f"{each.whole:.2f}" for each in (resumed, replayed)),
                    f"{resumed.pipeline:.2f}",
                ]
            )
        (_, first, _), (furthest, last, replayed) = parts[0], parts[-1]
        growth = last.parts["replay"] / first.parts["replay"]
        aims.check(f"{place}: input at {furthest:,} batches / at {parts[0][0]:,}", growth, "at most", AT_MOST)
        on_top = last.parts["replay"] - last.pipeline
        aims.check(
            f"{place}: input at {furthest:,} batches beyond its iterator", on_top, "below", ON_TOP, " s"
        )
        tell(
            f"input of a resume, {place}",
            f"replay of {furthest:,} batches",
            last.parts["replay"] / replayed.parts["replay"],
            better="less",
        )
    return table(
        ["seconds to the first new step", "input", "replayed", "whole", "replayed", "an iterator"], rows
    )


def report_arrays(results: dict[Job, Resumption], aims: Aims) -> str:
    """Returns the table, and judges the input's part late in the third epoch of arrays."""
    rows = []
    for place in dict.fromkeys(job.place for job in results if job.way == ARRAYS):
        of_place = ((job, each) for job, each in results.items() if (job.place, job.way) == (place, ARRAYS))
        (_, early), (job, late) = sorted(of_place, key=lambda pair: pair[0].batches)
        parts = [each.parts["replay"] for each in (early, late)]
        rows.append(
            [
                f"{place}, batch {job.batches:,} of {job.batches + job.after:,}",
                *(f"{part:.2f}" for part in parts),
                *(f"{each.whole:.2f}" for each in (early, late)),
            ]
        )
        # Both may be next to nothing, and what one is of the other is then chance.
        aims.check(
            f"{place}: input late in the third epoch of arrays, early in the first {parts[0]:.2f} s",
            parts[1],
            "at most",
            round(max(AT_MOST * parts[0], ON_TOP), 2),
            " s",
        )
        tell(
            f"input of a resume in the third epoch of arrays, {place}",
            "in the first",
            parts[1] / parts[0],
            better="less",
        )
    return table(["three epochs of arrays, s", "input, early", "late", "whole, early", "late"], rows)
