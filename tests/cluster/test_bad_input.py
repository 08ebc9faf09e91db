"""What cannot work is refused before the first step, in words that help, and nothing is changed on disk.

Damaged files: test_bad_files.py; buckets: test_gcs_fit.py; a TerminationConfig: tests/notices/test_termination.py.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import keras
import pytest

from keras_preempt import PreemptionCallback
from keras_preempt.checkpoint.errors import ForeignDirectory, IdentityMismatch, StoreUnavailable
from tests.cluster.harness import start_cluster
from tests.cluster.small_fit import contents, fit, make_data, make_model
from tests.cluster.training import SCRIPT, Training
from tests.fits import Doing

# Also a fit that is refused leaves no thread and no signal handler behind.
pytestmark = pytest.mark.usefixtures("everything_is_given_back")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"directory": ""}, "non-empty directory"),
        ({"directory": "  "}, "non-empty directory"),
        ({"directory": None}, "str or os.PathLike"),
        ({"directory": "gs://"}, "gs://bucket/prefix"),
        ({"directory": "gs:///run"}, "gs://bucket/prefix"),
        ({"directory": "gs://Bucket/run"}, "lower-case"),
        ({"directory": "gs://bucket/../run"}, "normal form"),
        ({"directory": Path("gs://bucket/run")}, "as a string"),
        ({"directory": "oss://bucket/run"}, "scheme"),
        ({"max_to_keep": 0}, "max_to_keep .* at least 1"),
        ({"max_to_keep": True}, "max_to_keep"),
        ({"max_to_keep": 1.5}, "max_to_keep"),
        ({"save_every": "often"}, "save_every"),
        ({"keep_every": 0}, "keep_every"),
        ({"keep_every": "often"}, "keep_every"),
        ({"staging_dir": 7}, "staging_dir to be a path"),
        ({"staging_dir": ""}, "staging_dir to be a path"),
        ({"staging_dir": "gs://bucket/staging"}, "staging_dir to be a path.*local disk"),
        ({"input_state": "2GB"}, "Expected input_state to be 'auto', 'replay', or the most bytes"),
        ({"termination": "SIGTERM"}, "TerminationConfig"),
    ],
)
def test_an_argument_that_cannot_work_is_refused_at_once(
    arguments: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=match):
        PreemptionCallback(**{"directory": tmp_path / "run", **arguments})
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("where", ["below a file", "no file system for files"])
def test_a_directory_that_cannot_be_written_is_refused(where: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    directory = tmp_path / "file" / "run" if where == "below a file" else Path("/proc/self/run")
    with pytest.raises(StoreUnavailable, match=re.escape(str(directory))):
        fit(directory)
    assert contents(tmp_path) == {"file": b"mine"}


def test_a_directory_of_something_else_is_refused_and_the_model_stays_as_usable_as_before(
    tmp_path: Path,
) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    model = make_model()
    before = [weight.numpy().tobytes() for weight in model.weights]
    with pytest.raises(ForeignDirectory, match=r"thesis\.txt"):
        fit(tmp_path, model=model)
    assert contents(tmp_path) == {"thesis.txt": b"mine"}
    assert [weight.numpy().tobytes() for weight in model.weights] == before
    model.fit(make_data(), shuffle=False, verbose=0)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_directory_of_another_run_is_refused_naming_what_differs(tmp_path: Path) -> None:
    fit(tmp_path, strike=(0, 2))
    before = contents(tmp_path)
    with pytest.raises(IdentityMismatch) as error:
        fit(tmp_path, model=make_model(5))
    for name in ("small/hidden/kernel", "[2, 3]", "[2, 5]"):
        assert name in str(error.value)
    with pytest.raises(IdentityMismatch) as error:
        fit(tmp_path, batch=8)
    for name in ("setup global_batch: expected 4, received 8", "setup batches: expected 4, received 2"):
        assert name in str(error.value)
    assert contents(tmp_path) == before


@pytest.mark.chaos
def test_workers_that_do_not_share_a_directory_are_refused(tmp_path: Path) -> None:
    training = Training(tmp_path, 2)
    own = [tmp_path / f"machine {worker}" for worker in range(2)]
    for path in own:
        path.mkdir()
    env = {worker: {"KERAS_PREEMPT_DIRECTORY": str(path)} for worker, path in enumerate(own)}
    result = training.start(per_worker_env=env)
    for worker in range(2):
        assert result.codes[worker] not in (0, 75)
        assert "Expected a directory that all workers share" in result.outputs[worker]
        assert training.steps(worker) == []
        assert contents(own[worker]) == {}


def test_a_model_that_is_not_compiled_and_two_callbacks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="compile"):
        fit(tmp_path / "run", model=keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match="Expected one PreemptionCallback in a fit"):
        fit(tmp_path / "run", more=[PreemptionCallback(tmp_path / "other")])
    assert contents(tmp_path) == {}


def test_two_fits_of_one_process_on_one_directory_are_refused_however_it_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    (tmp_path / "link").symlink_to(directory)
    monkeypatch.chdir(tmp_path)
    begun: list[int] = []

    def fit_again(epoch: int, logs: object) -> None:
        begun.append(epoch)
        before = contents(directory)
        for other in (str(directory), "run", str(tmp_path / "link")):
            with pytest.raises(ValueError, match="no other fit of this process is using"):
                fit(other)
            assert contents(directory) == before

    assert len(fit(directory, epochs=1, more=[Doing(on_epoch_begin=fit_again)])) == 4
    assert begun == [0]


def test_a_job_started_twice_cannot_overwrite_the_one_that_started_later(tmp_path: Path) -> None:
    first, second = Training(tmp_path / "first"), Training(tmp_path / "second")
    first.output.parent.mkdir()
    second.directory = first.directory
    second.output.parent.mkdir()
    with start_cluster(SCRIPT, 1, args=[*first.command, "--slow", "0.5"]) as running:
        running.wait_for_line(0, "AT done 0 1")
        second.finish()
        saved = second.checkpoints
        running.signal(0, signal.SIGTERM)
        result = running.wait()
    assert result.codes == [74]
    assert "NOT saved" in result.outputs[0]
    assert "incarnation" in result.outputs[0]
    assert second.checkpoints == saved
