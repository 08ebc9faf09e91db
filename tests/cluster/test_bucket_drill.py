"""Two workers, real signals, and a bucket behind a network that fails again and again: the same bits in the end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cli.main import main
from keras_preempt.cluster import supervisor
from keras_preempt.drilled import hooks
from keras_preempt.process import environment
from keras_preempt.report import events
from keras_preempt.testing import FakeAzure, FakeGcs, FakeS3, Faults
from tests.cluster.forked import QUIET_CPU, ForkedCluster

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
NAMED = "replaced by the drill"
FAKES: dict[str, type[FakeGcs | FakeS3 | FakeAzure]] = {"gs": FakeGcs, "s3": FakeS3, "az": FakeAzure}
KINDS = ("429", "503", "corrupted", "lost-response", "reset", "truncated")


@pytest.fixture
def drilled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Drills two workers over a bucket. Fails unless every bit was the same."""

    def run(scheme: str, fake: FakeGcs | FakeS3 | FakeAzure, options: str, script_args: str) -> None:
        staging = tmp_path / "temporary"
        staging.mkdir()
        for name, value in {**QUIET_CPU, **fake.environment(), "TMPDIR": str(staging)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(tempfile, "tempdir", str(staging))
        monkeypatch.setattr(supervisor, "LocalCluster", ForkedCluster)
        monkeypatch.chdir(tmp_path)
        command = ["python", str(SCRIPT), str(tmp_path / "output"), NAMED, "--strategy", "mwms"]
        where = ["--workers", "2", "--timeout", "200", "--keep", f"{scheme}://bucket/drill"]
        assert main(["drill", *where, *options.split(), "--", *command, *script_args.split()]) == 0
        assert list(staging.iterdir()) == [], "files that were staged are left"
        left = [path.name for path in tmp_path.iterdir() if path != staging]
        assert [name for name in left if "output" not in name] == []

    return run


@pytest.mark.parametrize("scheme", ["gs", "s3", pytest.param("az", marks=pytest.mark.chaos)])
def test_two_workers_preempted_over_a_faulty_bucket_end_bit_identical(
    scheme: str, drilled: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.DRILL_DIRECTORY, f"{scheme}://bucket/drill/preempted")
    preempted = str(hooks.directory_for(NAMED))
    monkeypatch.delenv(environment.DRILL_DIRECTORY)
    place = preempted.rpartition("/")[2]
    with FAKES[scheme](buckets=("bucket",), faults=Faults(seed=8, rate=0.1, kinds=KINDS)) as fake:
        # Those that hurt most happen for certain.
        fake.fail_next("lost-response", match="run.json")
        fake.fail_next("lost-response", match=f"undisturbed/{place}/incarnations")
        fake.fail_next("reset", match="uploadType=multipart" if scheme == "gs" else "PUT")
        fake.fail_next("429", match=f"preempted/{place}/step-")
        fake.fail_next("corrupted", match="mirrored.safetensors")
        fake.fail_next("truncated", match="local.safetensors")
        fake.fail_next("503", match="MANIFEST.json")
        fake.fail_next("lost-response", match="MANIFEST.json")
        drilled(scheme, fake, "--seed 7", "--epochs 1 --no-validation")
        assert fake.pending_faults == 0
        assert {request.fault for request in fake.requests} >= set(KINDS)

        fake.faults = Faults()
        store = open_store(preempted, staging_dir=tmp_path)
        told = events.read(store)
        store.close()
    for worker in range(2):
        kinds = [(event["incarnation"], event["event"]) for event in told if event["member"] == worker]
        expected = [(1, "start"), (1, "hold"), (1, "commit"), (1, "exit"), (2, "restore"), (2, "finish")]
        assert [kind for kind in kinds if kind in expected] == expected


@pytest.mark.chaos
@pytest.mark.parametrize("scheme", FAKES)
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_faults_and_preemptions_leaves_the_same_bits(
    scheme: str, seed: int, drilled: Callable[..., None]
) -> None:
    # Uploads to Azure carry no checksum: only TLS finds damage on the way.
    kinds = (*KINDS, "stall", "500", "409", *(() if scheme == "az" else ("corrupted-upload",)))
    faults = Faults(seed=seed, rate=0.2, kinds=kinds, stall_seconds=2.0)
    with FAKES[scheme](buckets=("bucket",), faults=faults) as fake:
        drilled(scheme, fake, f"--preempt 3 --seed {seed}", "--epochs 3 --save-every 4 --slow 0.1")


@pytest.mark.chaos
@pytest.mark.parametrize("scheme", FAKES)
def test_a_kill_over_a_faulty_bucket_leaves_the_same_bits(scheme: str, drilled: Callable[..., None]) -> None:
    faults = Faults(seed=3, rate=0.1, kinds=KINDS)
    with FAKES[scheme](buckets=("bucket",), faults=faults) as fake:
        drilled(scheme, fake, "--kill --seed 3 --save-every 4", "--epochs 2")
