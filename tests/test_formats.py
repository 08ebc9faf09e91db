"""What an earlier release has written is read and continued; what a later one has written is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_preempt.checkpoint import documents
from keras_preempt.checkpoint.errors import CheckpointError, UnsupportedFormat
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.layout import EVENTS, MANIFEST, RUN
from keras_preempt.checkpoint.reader import load, verify
from keras_preempt.checkpoint.run_directory import read_run
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.cli.main import main
from keras_preempt.report import events
from tests.cluster.harness import run_cluster

FORMATS = Path(__file__).parent / "formats"
FIRST = FORMATS / "format-1"
SCRIPTS = Path(__file__).parent / "cluster" / "scripts"
ATTEMPT = "step-00000006/00001-0000"
DIVIDED = (MANIFEST, "w00000.part.json", "w00001.part.json")
"""What is in format 2 where variables are divided."""


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(shutil.copytree(FIRST, tmp_path / "run"))


def test_format_1_is_read_whole(store: LocalStore) -> None:
    (info,) = committed(store)
    assert info.manifest is not None
    assert (info.manifest.format, info.manifest.step, info.manifest.kind) == (1, 6, "preempted")
    verify(store, info)
    loaded = load(store, info, 0, 1)
    assert loaded.values.whole["optimizer/adam/iteration"] == 6
    assert loaded.values.whole["model/small/hidden/kernel"].shape == (2, 3)
    assert np.isfinite(loaded.values.whole["model/small/norm/moving_mean"]).all()
    assert {"input", "callbacks", "random", "setup"} <= loaded.state.keys()
    assert read_run(store)["optimizer_class"] == "Adam"
    told = [event["event"] for event in events.read(store)]
    assert told[0] == "start"
    assert "commit" in told


@pytest.mark.parametrize("command", [["inspect", "--verify"], ["clean"], ["export"]])
def test_every_command_takes_format_1(store: LocalStore, tmp_path: Path, command: list[str]) -> None:
    out = [str(tmp_path / "out.safetensors")] if command == ["export"] else []
    assert main([*command, store.url, *out]) == 0


def test_a_directory_of_the_first_release_is_continued(store: LocalStore, tmp_path: Path) -> None:
    """As that release itself continued it: in every bit, where the processor rounds as the one that it ran on."""
    out = tmp_path / "end.npz"
    result = run_cluster(SCRIPTS / "first_release.py", 1, args=[store.url, str(out)]).assert_ok()
    assert f"{ATTEMPT}: epoch 1, train batch 2, step 6" in result.outputs[0]
    end, stored = np.load(out), np.load(FORMATS / "format-1.end-w0.npz")
    assert end["optimizer/adam/iteration"] == 8
    assert list(end["epochs"]) == [0, 1]
    if differing([end], [stored]):
        for name in stored.files:
            # A bias that is normalized away has noise for a gradient, and Adam makes a step of 0.001 of each noise.
            atol = 2e-3 if name == "model/small/hidden/bias" else 1e-5
            np.testing.assert_allclose(end[name], stored[name], rtol=1e-5, atol=atol, err_msg=name)


@pytest.mark.parametrize(("made_by", "workers"), [("one-device", 1), ("two-workers", 2)])
def test_a_directory_from_before_the_modules_moved_is_continued_bit_by_bit(
    made_by: str, workers: int, tmp_path: Path
) -> None:
    directory = shutil.copytree(FORMATS / f"format-1-{made_by}", tmp_path / "run")
    continued = train(tmp_path / "continued", workers, directory)
    stored = [np.load(FORMATS / f"format-1-{made_by}.end-w{member}.npz") for member in range(workers)]
    if differing(continued, stored):
        # The processor or a release of TensorFlow may round otherwise than where the directory was made.
        undisturbed = train(tmp_path / "undisturbed", workers, tmp_path / "another")
        assert differing(undisturbed, stored), f"{differing(continued, stored)} differ by the restart alone"
        for one, other in zip(continued, stored, strict=True):
            for name in one.files:
                np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-5, err_msg=name)


def train(out: Path, workers: int, directory: Path) -> list[Any]:
    """Runs the job to its end; returns what each worker ended with."""
    args = [str(out), "--directory", str(directory)]
    run_cluster(SCRIPTS / "earlier_release.py", workers, args=args).assert_ok()
    return [np.load(f"{out}-w{member}.npz") for member in range(workers)]


def differing(ones: list[Any], others: list[Any]) -> list[str]:
    """The names of what is not the same in every bit."""
    return [
        f"w{member}: {name}"
        for member, (one, other) in enumerate(zip(ones, others, strict=True))
        for name in sorted({*one.files, *other.files})
        if name not in one or name not in other or one[name].tobytes() != other[name].tobytes()
    ]


def test_nothing_of_the_directory_was_changed_since() -> None:
    """Each document still ends with the sum that it was written with."""
    for path in FORMATS.glob("format-*/**/*.json"):
        divided = path.is_relative_to(FORMATS / "format-2-two-processes") and path.name in DIVIDED
        assert documents.decode_document(path.read_bytes(), str(path), newest=2)["format"] == 1 + divided, (
            path
        )


def newer_document(path: Path) -> None:
    fields = documents.decode_document(path.read_bytes(), "")
    path.write_bytes(documents.encode_document({**fields, "format": 3, "what-else": "is new"}))


def newer_line(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    lines.append(json.dumps({"event": "saved-otherwise", "time": 1e9, "format": 3}) + "\n")
    path.write_text("".join(lines))


def read_all(store: LocalStore) -> None:
    read_run(store)
    for info in committed(store):
        if info.error is not None:
            raise info.error
        verify(store, info)
    events.read(store)


@pytest.mark.parametrize(
    ("name", "make_newer", "newest"),
    [
        (RUN, newer_document, 1),
        (f"{ATTEMPT}/{MANIFEST}", newer_document, 2),
        (f"{EVENTS}/00001.w00000.jsonl", newer_line, 1),
    ],
)
def test_a_newer_format_is_refused_with_the_version_that_is_needed(
    store: LocalStore, name: str, make_newer: Callable[[Path], None], newest: int
) -> None:
    read_all(store)
    make_newer(store.path / name)
    with pytest.raises(UnsupportedFormat) as refused:
        read_all(store)
    assert str(refused.value) == (
        f"Expected {name} in format version {newest} or older. Received: format version 3. "
        "Install a keras-preempt release that reads format version 3."
    )


def test_a_part_of_a_newer_format_is_refused_though_its_manifest_is_not(store: LocalStore) -> None:
    newer_document(store.path / ATTEMPT / "w00000.part.json")
    with pytest.raises(CheckpointError):
        read_all(store)
