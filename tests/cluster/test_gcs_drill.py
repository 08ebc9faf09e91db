"""Two workers, real signals, and a bucket behind a network that fails again and again: the same bits in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.process import environment
from keras_preempt.report import events
from keras_preempt.testing import FakeGcs, Faults, drill
from keras_preempt.training import drill_place
from tests.cluster.harness import QUIET_CPU

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
NAMED = "replaced by the drill"
KINDS = ("429", "503", "corrupted", "lost-response", "reset", "truncated")


def drilled(gcs: FakeGcs, folder: Path, *script_args: str, **options: Any) -> None:
    """Drills over the bucket. Fails unless every bit was the same."""
    staging = folder / "temporary"
    staging.mkdir()
    verdict = drill(
        SCRIPT, folder / "output", NAMED, "--strategy", "mwms", *script_args,
        workers=2, timeout=200, keep="gs://bucket/drill", cwd=folder,
        environment={**QUIET_CPU, **gcs.environment(), "TMPDIR": str(staging)}, **options,
    )  # fmt: skip
    assert verdict.identical, verdict
    assert list(staging.iterdir()) == [], "files that a worker has staged are left"
    assert [path.name for path in folder.iterdir() if path != staging and "output" not in path.name] == []


def test_two_workers_preempted_over_a_faulty_bucket_end_bit_identical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.DRILL_DIRECTORY, "gs://bucket/drill/preempted")
    preempted = str(drill_place.replaced(NAMED))
    monkeypatch.delenv(environment.DRILL_DIRECTORY)
    place = preempted.rpartition("/")[2]
    with FakeGcs(buckets=("bucket",), faults=Faults(seed=8, rate=0.1, kinds=KINDS)) as gcs:
        # Those that hurt most happen for certain.
        gcs.fail_next("lost-response", match="run.json")
        gcs.fail_next("lost-response", match=f"undisturbed/{place}/incarnations")
        gcs.fail_next("reset", match="uploadType=multipart")
        gcs.fail_next("429", match=f"preempted/{place}/step-")
        gcs.fail_next("corrupted", match="mirrored.safetensors")
        gcs.fail_next("truncated", match="local.safetensors")
        gcs.fail_next("503", match="MANIFEST.json")
        gcs.fail_next("lost-response", match="MANIFEST.json")
        drilled(gcs, tmp_path, "--epochs", "1", "--no-validation", seed=7)
        assert gcs.pending_faults == 0
        assert {request.fault for request in gcs.requests} >= set(KINDS)

        gcs.faults = Faults()
        for name, value in gcs.environment().items():
            monkeypatch.setenv(name, value)
        store = open_store(preempted, staging_dir=tmp_path)
        told = events.read(store)
        store.close()
    for worker in range(2):
        kinds = [(event["incarnation"], event["event"]) for event in told if event["member"] == worker]
        expected = [(1, "start"), (1, "hold"), (1, "commit"), (1, "exit"), (2, "restore"), (2, "finish")]
        assert [kind for kind in kinds if kind in expected] == expected


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_faults_and_preemptions_leaves_the_same_bits(seed: int, tmp_path: Path) -> None:
    faults = Faults(
        seed=seed, rate=0.2, kinds=(*KINDS, "stall", "500", "corrupted-upload"), stall_seconds=2.0
    )
    with FakeGcs(buckets=("bucket",), faults=faults) as gcs:
        script_args = ("--epochs", "3", "--save-every", "4", "--slow", "0.1")
        drilled(gcs, tmp_path, *script_args, preempt=3, seed=seed)
