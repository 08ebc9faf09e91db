"""A run that is started again on another number of workers goes on by the rules, and says so.

Every worker keeps the values of all variables, read through the strategy, after each step and before the first one
of each start: what a start begins with is compared with what the one before it left. Metrics add up the numbers of
the samples that an epoch has used, so that the epoch's logs tell whether each was used once: `EVERY_SAMPLE_ONCE`.

| test | workers |
|---|---|
| `make test` | 2, then 1, then 2 |
| chaos | 2 that were 1, preempted, compared with 2 that were not; 2 of which one is killed before it has saved, 1 |
| | 1, 2 replicas in one process, 2; scaled batches; 2, then 3: test_restoring_together.py |
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_preempt.checkpoint.failpoints import VARIABLE
from tests.cluster.harness import ClusterResult, run_cluster
from tests.cluster.training import PREEMPTED, Strike

SCRIPT = Path(__file__).parent / "scripts" / "other_workers.py"
SAMPLES = 48
EVERY_SAMPLE_ONCE = (SAMPLES, sum(range(SAMPLES)), sum(n * n for n in range(SAMPLES)))

Values = dict[str, np.ndarray]
"""Values of variables by name; the first axis counts the replicas of all workers."""


class Run:
    """One run, continued by starts of any number of workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = folder / "run"
        folder.mkdir(exist_ok=True)

    def start(
        self,
        workers: int,
        preempt_at: str = "",
        strategy: str = "",
        args: Sequence[str] = (),
        codes: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        **how: Any,
    ) -> ClusterResult:
        """Runs one start to its end; the last worker gets SIGTERM at a mark."""
        strategy = strategy or ("mwms" if workers > 1 else "one")
        strikes = [asdict(Strike(preempt_at, (workers - 1,)))] if preempt_at else []
        result = run_cluster(
            SCRIPT,
            workers,
            args=[str(self.folder / "kept"), str(self.directory), "--strategy", strategy, *args],
            env={"TRAIN_STRIKES": json.dumps(strikes), **(env or {})},
            timeout=240,
            **how,
        )
        return result.assert_codes(*(codes or [PREEMPTED if preempt_at else 0]))

    def kept(self, moment: str, workers: int) -> Values:
        """What the variables held when the last start of these workers began ("resumed") or ended ("left")."""
        values = []
        for member in range(workers):
            with np.load(f"{self.folder / 'kept'}.{moment}.{member}.npz") as file:
                values.append({name: file[name] for name in file.files})
        return {name: np.concatenate([own[name] for own in values]) for name in values[0]}

    def history(self, member: int = 0) -> dict[str, list[float]]:
        """The History that the last start returned."""
        logs: dict[str, list[float]] = json.loads((self.folder / f"kept.{member}.json").read_text())
        return logs

    def restores(self) -> list[dict[str, Any]]:
        """The events of worker 0 that tell of a restore, in order."""
        lines = [
            json.loads(line)
            for path in sorted(self.directory.glob("events/*.w00000.jsonl"))
            for line in path.read_text().splitlines()
        ]
        return [line for line in lines if line["event"] == "restore"]

    def copy(self, folder: Path) -> Run:
        shutil.copytree(self.folder, folder)
        return Run(folder)


def assert_regrouped(before: Values, after: Values) -> None:
    """Each variable is what the rules make of it; every rule is met by one at least."""
    met = set()
    assert before.keys() == after.keys()
    for name, old in before.items():
        new = after[name]
        replicas = range(len(new))
        if name.startswith("2 "):
            met.add("total")
            np.testing.assert_array_equal(new.sum(axis=0), old.sum(axis=0), name)
        elif "moving_" in name:
            met.add("average")
            mean = old.astype(np.float64).mean(axis=0).astype(old.dtype)
            for replica in replicas:
                np.testing.assert_array_equal(new[replica], mean, name)
        else:
            met.add("seed" if "seed" in name else "frozen" if "frozen" in name else "weight")
            for value in [*old, *new]:
                assert value.tobytes() == old[0].tobytes(), name
    assert met == {"total", "average", "seed", "frozen", "weight"}


def assert_epochs_whole(history: dict[str, list[float]]) -> None:
    seen = list(zip(history["samples"], history["numbers"], history["squares"], strict=True))
    assert seen == [EVERY_SAMPLE_ONCE] * 5
    assert history["accuracy"][-1] > 0.8


def test_two_workers_become_one_and_two_again_and_go_on(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.start(2, "batch 0 4")
    identity = (run.directory / "run.json").read_bytes()
    two = run.kept("left", 2)
    moving = next(name for name in two if "moving_mean" in name)
    assert (two[moving][0] != two[moving][1]).any(), "nothing to average"

    output = run.start(1, "batch 1 3").outputs[0]
    assert_regrouped(two, run.kept("resumed", 1))
    said = (
        "Restored on 1 worker a checkpoint of 2 workers: weights exact; metrics keep their totals; "
        "BatchNormalization statistics averaged; input at sample 40 of epoch 0; NOT bit-identical from here."
    )
    assert output.count(said) == 1
    assert (run.restores()[-1]["regrouped"], run.restores()[-1]["saved_by"]) == (said, 2)

    one = run.kept("left", 1)
    run.start(2)
    assert_regrouped(one, run.kept("resumed", 2))
    assert_epochs_whole(run.history())
    assert (run.directory / "run.json").read_bytes() == identity


@pytest.mark.chaos
def test_after_a_change_it_is_a_run_of_two_workers_like_any_other(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.start(1, "batch 1 3")
    undisturbed = run.copy(tmp_path / "undisturbed")
    undisturbed.start(2)
    run.start(2, "batch 2 3")
    output = run.start(2).outputs[0]
    assert "NOT" not in output
    assert run.restores()[-1]["regrouped"] is None
    assert run.history() == undisturbed.history()
    ended, expected = run.kept("left", 2), undisturbed.kept("left", 2)
    assert {name: value.tobytes() for name, value in ended.items()} == {
        name: value.tobytes() for name, value in expected.items()
    }


@pytest.mark.chaos
def test_a_worker_killed_before_it_saved_costs_its_share_of_the_metrics_and_nothing_else(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path / "run")
    armed = {1: {VARIABLE: "save.before-parts=kill"}}
    run.start(2, "batch 1 2", codes=(PREEMPTED, -9), per_worker_env=armed)
    two = run.kept("left", 2)
    output = run.start(1).outputs[0]
    assert "worker 1 had not written their own part" in output
    resumed = run.kept("resumed", 1)
    for name, old in two.items():
        np.testing.assert_array_equal(resumed[name][0], old[0], name)
    history = run.history()
    assert history["samples"] == [48, 48 - 3 * 4, 48, 48, 48]
    assert history["accuracy"][-1] > 0.8


@pytest.mark.chaos
def test_one_device_two_replicas_in_a_process_and_two_workers_go_on_from_each_other(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.start(1, "batch 1 1")
    left = run.kept("left", 1)
    run.start(1, "batch 2 1", "mirrored")
    assert_regrouped(left, run.kept("resumed", 1))
    left = run.kept("left", 1)
    output = run.start(2, "batch 3 1").outputs[0]
    assert "weights and what each replica holds exact" in output
    resumed = run.kept("resumed", 2)
    for name, old in left.items():
        np.testing.assert_array_equal(resumed[name], old, name)
    run.start(1, "batch 4 1", "mirrored")
    left = run.kept("left", 1)
    run.start(1)
    assert_regrouped(left, run.kept("resumed", 1))
    assert_epochs_whole(run.history())


@pytest.mark.chaos
def test_a_batch_that_is_scaled_with_the_workers_goes_on_at_the_sample(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.start(1, "batch 1 4", args=["--batch", "4"])  # stops after 5 batches, at sample 20
    output = run.start(2, "batch 2 2", args=["--batch", "8"]).outputs[0]  # after 3 batches, at sample 24
    assert "input at sample 16 of epoch 1; used again before it: 4 samples" in output
    output = run.start(3, args=["--batch", "12"]).outputs[0]
    assert "input at sample 24 of epoch 2; NOT" in output
    assert run.history()["samples"] == [48, 48 + 4, 48, 48, 48]
    assert [n for epoch, n in enumerate(run.history()["numbers"]) if epoch != 1] == [EVERY_SAMPLE_ONCE[1]] * 4


@pytest.mark.chaos
@pytest.mark.parametrize("policy", ["DATA", "OFF"])
def test_what_an_epoch_has_used_is_exact_where_the_strategy_shards_the_samples(
    policy: str, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    run.start(2, "batch 1 2", args=["--policy", policy])
    run.start(1, args=["--policy", policy])
    seen = (run.history()["samples"][1], run.history()["numbers"][1], run.history()["squares"][1])
    # Without sharding both workers draw the same samples: the number is right, the samples are not.
    assert seen[0] == SAMPLES
    assert (seen == EVERY_SAMPLE_ONCE) == (policy == "DATA")
