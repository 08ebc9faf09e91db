"""What cannot work is refused before the first step, in words that help, and nothing is changed on disk.

| bad input | tests |
|---|---|
| arguments | test_an_argument_that_cannot_work_is_refused_at_once |
| a directory that is empty as a name, unwritable, foreign | the next two |
| a directory of another model, batch size | test_a_directory_of_another_run_... |
| a bucket that cannot be used | test_gcs_fit.py |
| a directory that the workers do not share | test_workers_that_do_not_share_a_directory_are_refused |
| ParameterServerStrategy, an uncompiled model | test_a_..._is_refused |
| two callbacks in a fit, two fits or two jobs on a directory | test_two_... |
| damaged files | test_bad_files.py |
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from keras_preempt import PreemptionCallback, TerminationConfig
from keras_preempt.backend.tensorflow.place import place
from keras_preempt.checkpoint.errors import ForeignDirectory, IdentityMismatch, StoreUnavailable
from tests.cluster.harness import start_cluster
from tests.cluster.left_behind import is_given_back
from tests.cluster.small_fit import contents, fit, make_data, make_model
from tests.cluster.training import SCRIPT, Training


@pytest.fixture(autouse=True)
def _everything_is_given_back() -> Iterator[None]:
    """Also a fit that is refused leaves no thread and no signal handler behind."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    assert is_given_back(signal.SIGTERM, handler)
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("keras_preempt")]
    assert left == []


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"directory": ""}, ValueError, "non-empty directory"),
        ({"directory": "  "}, ValueError, "non-empty directory"),
        ({"directory": None}, ValueError, "str or os.PathLike"),
        ({"directory": "gs://"}, ValueError, "gs://bucket/prefix"),
        ({"directory": "gs:///run"}, ValueError, "gs://bucket/prefix"),
        ({"directory": "gs://Bucket/run"}, ValueError, "lower-case"),
        ({"directory": "gs://bucket/../run"}, ValueError, "normal form"),
        ({"directory": Path("gs://bucket/run")}, ValueError, "as a string"),
        ({"directory": "s3://bucket/run"}, ValueError, "scheme"),
        ({"max_to_keep": 0}, ValueError, "max_to_keep .* at least 1"),
        ({"max_to_keep": True}, ValueError, "max_to_keep"),
        ({"max_to_keep": 1.5}, ValueError, "max_to_keep"),
        ({"save_every": "often"}, ValueError, "save_every"),
        ({"keep_every": 0}, ValueError, "keep_every"),
        ({"keep_every": "often"}, ValueError, "keep_every"),
        ({"staging_dir": 7}, ValueError, "staging_dir to be a path"),
        ({"staging_dir": ""}, ValueError, "staging_dir to be a path"),
        ({"staging_dir": "gs://bucket/staging"}, ValueError, "staging_dir to be a path.*local disk"),
        ({"termination": "SIGTERM"}, ValueError, "TerminationConfig"),
    ],
)
def test_an_argument_that_cannot_work_is_refused_at_once(
    arguments: dict[str, Any], error: type[Exception], match: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=match):
        PreemptionCallback(**{"directory": tmp_path / "run", **arguments})
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"signals": ["SIGFOO"]}, ValueError, "SIGFOO"),
        ({"signals": ["SIGKILL"]}, ValueError, "SIGKILL"),
        ({"signals": ["TERM", "SIGTERM"]}, ValueError, "twice"),
        ({"signals": [999]}, ValueError, "999"),
        ({"exit_code": 0}, ValueError, "1 to 255"),
        ({"exit_code": 256}, ValueError, "1 to 255"),
        ({"exit_code": True}, ValueError, "1 to 255"),
        ({"exit_fn": 75}, ValueError, "exit_fn"),
        ({"grace_period": -1}, ValueError, "grace_period"),
    ],
)
def test_a_termination_that_cannot_work_is_refused_at_once(
    arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        TerminationConfig(**arguments)


@pytest.mark.parametrize("where", ["below a file", "no file system for files"])
def test_a_directory_that_cannot_be_written_is_refused(where: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    directory = tmp_path / "file" / "run" if where == "below a file" else Path("/proc/self/run")
    with pytest.raises(StoreUnavailable, match=re.escape(str(directory))):
        fit(directory)
    assert contents(tmp_path) == {"file": b"mine"}


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ForeignDirectory, match=r"thesis\.txt"):
        fit(tmp_path)
    assert contents(tmp_path) == {"thesis.txt": b"mine"}


@pytest.mark.parametrize(
    ("other", "names"),
    [
        ({"model": 5}, ["small/hidden/kernel", r"\[2, 3\]", r"\[2, 5\]"]),
        (
            {"batch": 8},
            ["setup global_batch: expected 4, received 8", "setup batches: expected 4, received 2"],
        ),
    ],
    ids=["model", "batch size"],
)
def test_a_directory_of_another_run_is_refused_naming_what_differs(
    other: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    fit(tmp_path, strike=(0, 2))
    before = contents(tmp_path)
    wrong = {**other, "model": make_model(other["model"])} if "model" in other else other
    with pytest.raises(IdentityMismatch) as error:
        fit(tmp_path, **wrong)
    for name in names:
        assert re.search(name, str(error.value)), f"{name!r} in {error.value}"
    assert contents(tmp_path) == before


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


def test_a_parameter_server_strategy_is_refused(tmp_path: Path) -> None:
    # Without its servers: it is refused for what it is.
    kind = tf.distribute.ParameterServerStrategy
    with pytest.raises(ValueError, match="Received: ParameterServerStrategy"):
        place(kind.__new__(kind))


def test_a_model_that_is_not_compiled_is_refused(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="compile"):
        fit(tmp_path / "run", model=model)
    assert contents(tmp_path) == {}


def test_two_callbacks_in_one_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Expected one PreemptionCallback in a fit"):
        fit(tmp_path / "run", more=[PreemptionCallback(tmp_path / "other")])
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("spelled", ["the same", "relative", "through a link"])
def test_two_fits_of_one_process_on_one_directory_are_refused(
    spelled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    (tmp_path / "link").symlink_to(directory)
    monkeypatch.chdir(tmp_path)
    other = {"the same": str(directory), "relative": "run", "through a link": str(tmp_path / "link")}[spelled]
    seen: list[dict[str, bytes | None]] = []

    class Inner(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            seen.append(contents(directory))
            with pytest.raises(ValueError, match="no other fit of this process is using"):
                fit(other)
            seen.append(contents(directory))

        def get_state(self) -> dict[str, Any]:
            return {}

        def set_state(self, state: dict[str, Any]) -> None:
            pass

    assert len(fit(directory, epochs=1, more=[Inner()])) == 4
    assert seen[0] == seen[1]


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


def test_no_data_is_drawn_before_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    model = make_model()
    before = [weight.numpy().tobytes() for weight in model.weights]
    with pytest.raises(ForeignDirectory):
        fit(tmp_path, model=model)
    assert [weight.numpy().tobytes() for weight in model.weights] == before
    model.fit(make_data(), shuffle=False, verbose=0)  # The model is as usable as before.
    assert os.listdir(tmp_path) == ["thesis.txt"]
