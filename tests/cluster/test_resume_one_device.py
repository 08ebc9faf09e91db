"""One process, preempted again and again, ends bit-identical to one that nothing happened to.

| case | data | moments |
|---|---|---|
| one device | finite | first step, mid-epoch, last step of an epoch, validation begin |
| one device | repeat | mid-epoch, in validation, after validation, epoch begin |
| one device | unknown length | first step, last step of an epoch, in validation |
| mirrored, 2 replicas | finite | first step, mid-epoch, in validation |
| mirrored, 2 replicas | repeat | last step of an epoch, validation begin, epoch begin |
| one device, 4 steps an execution (6 an epoch) | finite | mid-epoch, the execution that is not full |
| every case | | after the last step: the run finishes |
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.training import Strike, Training, Undisturbed

REPEAT, UNKNOWN, MIRRORED = ("--data", "repeat"), ("--data", "unknown"), ("--strategy", "mirrored")

CASES = {
    "one": ((), ["tracing", "batch 1 3", "batch 1 5", "test 2"]),
    "one repeat": (REPEAT, ["batch 1 3", "test_batch 1 2", "test_end 1", "epoch 3"]),
    "one unknown": (UNKNOWN, ["tracing", "done 1 5", "test_batch 2 1"]),
    "mirrored": (MIRRORED, ["tracing", "batch 1 3", "test_batch 2 2"]),
    "mirrored repeat": ((*MIRRORED, *REPEAT), ["done 0 5", "test 1", "epoch 3"]),
    "one in executions": (("--spe", "4"), ["batch 1 4", "done 2 7"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_preempted_process_ends_as_if_nothing_had_happened(
    case: str, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    args, moments = CASES[case]
    training = Training(tmp_path, args=args)
    for moment in moments:
        training.preempt(Strike(moment))
    training.finish(Strike("epoch_end 3", settle=False))
    training.assert_same(undisturbed(1, *args))
