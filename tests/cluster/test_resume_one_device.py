"""One process, preempted again and again, ends bit-identical to one that nothing happened to.

| case | data | the signal comes in |
|---|---|---|
| one device | finite | the first step is traced, mid-epoch, the last step of an epoch, validation begin |
| one device | repeat | mid-epoch, after the validation |
| one device | unknown length | the last step of an epoch (ended), mid-validation |
| mirrored, 2 replicas | finite | the first step is traced, mid-validation |
| mirrored, 2 replicas | repeat | the last step of an epoch, epoch begin |
| one device, 4 steps an execution (6 an epoch) | finite | mid-epoch, in the execution that is not full |
| chaos: every kind of process | every data | every moment |
| every case | | after the last step: the run finishes |

The processes use one core each, so two jobs run at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.training import Strike, Training, Undisturbed

REPEAT, UNKNOWN, MIRRORED = ("--data", "repeat"), ("--data", "unknown"), ("--strategy", "mirrored")

CASES = {
    "one": ((), ["tracing", "batch 1 3", "batch 1 5", "test 2"]),
    "one repeat": (REPEAT, ["batch 1 3", "test_end 1"]),
    "one unknown": (UNKNOWN, ["done 1 5", "test_batch 2 1"]),
    "mirrored": (MIRRORED, ["tracing", "test_batch 2 2"]),
    "mirrored repeat": ((*MIRRORED, *REPEAT), ["batch 0 5", "epoch 3"]),
    "one in executions": (("--spe", "4"), ["batch 1 4"]),
}
MOMENTS = [
    "tracing",
    "batch 0 3",
    "batch 0 5",
    "done 1 1",
    "done 1 5",
    "test 1",
    "test_batch 1 2",
    "test_end 1",
]
MOMENTS += ["epoch 2", "batch 2 0", "epoch_end 2", "batch 3 5", "test_batch 3 0"]
KINDS = {"one": (), "one executions of 2": ("--spe", "2"), "mirrored": MIRRORED}
INPUTS = {"finite": (), "repeat": REPEAT, "unknown": UNKNOWN}


def disturb(training: Training, moments: list[str]) -> Training:
    for moment in moments:
        training.preempt(Strike(moment))
    training.finish(Strike("epoch_end 3", settle=False))
    return training


@pytest.fixture(scope="module")
def jobs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, undisturbed: Undisturbed
) -> Iterator[dict[str, Future[tuple[Training, Training]]]]:
    """The jobs of the cases that were asked for, as they come to their ends."""

    def run(case: str, folder: Path) -> tuple[Training, Training]:
        args, moments = CASES[case]
        return undisturbed(1, *args), disturb(Training(folder, args=args), moments)

    asked = [item.callspec.params for item in request.session.items if item.path == request.path]
    cases = [params["case"] for params in asked if "case" in params]
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {case: pool.submit(run, case, tmp_path_factory.mktemp("job")) for case in cases}


@pytest.mark.parametrize("case", CASES)
def test_a_preempted_process_ends_as_if_nothing_had_happened(
    case: str, jobs: dict[str, Future[tuple[Training, Training]]]
) -> None:
    undisturbed, preempted = jobs[case].result()
    preempted.assert_same(undisturbed)


@pytest.mark.chaos
@pytest.mark.parametrize("data", INPUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_preempted_at_every_moment_ends_as_if_nothing_had_happened(
    kind: str, data: str, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    args = (*KINDS[kind], *INPUTS[data])
    if (kind, data) == (
        "mirrored",
        "unknown",
    ):  # The one that is not exact at the very end of an epoch: it says so.
        assert "NOT exact after a preemption" in Training(tmp_path, args=args).finish().outputs[0]
        return
    moments = MOMENTS
    if "--spe" in args:  # It begins with an even batch, ends with an odd one.
        moments = [m for m in moments if m not in ("batch 0 3", "batch 0 5", "test_end 1", "batch 3 5")]
    disturb(Training(tmp_path, args=args), moments).assert_same(undisturbed(1, *args))
