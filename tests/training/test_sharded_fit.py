"""A whole fit of a divided model is continued, in the same layout, in another one, and where nothing is divided."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_preempt
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.cli.main import main
from tests import fits
from tests.cluster.noticed_fit import Model
from tests.state.test_sharding import divided

X = np.linspace(-1, 1, 96, dtype=np.float32).reshape(24, 4)


Fitted = tuple[list[bytes], dict[str, list[float]]]

compiled = functools.cache(Model)


def fit(directory: Path, epochs: int) -> Fitted:
    """Trains as a new process does; returns all bits and the history."""
    fits.forget()
    compiled().begin_anew()
    keras.utils.set_random_seed(5)
    model, ours = compiled().keras, keras_preempt.PreemptionCallback(directory)
    data = {"x": X, "y": X[:, :1], "validation_data": (X, X[:, :1])}
    history = model.fit(**data, batch_size=8, epochs=epochs, verbose=0, callbacks=[ours])
    variables = [*model.variables, *model.optimizer.variables]
    return [np.asarray(variable).tobytes() for variable in variables], history.history


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    return fit(tmp_path_factory.mktemp("undisturbed"), 2)


@contextlib.contextmanager
def layout(text: str, pieces: int) -> Iterator[None]:
    """One process that holds every piece of every matrix."""
    with divided(0, [(0,)] * pieces), mock.patch.object(backend(), "layout", return_value=text):
        yield


TWO, THREE = (lambda: layout("2 columns", 2)), (lambda: layout("3 columns", 3))
WHOLE = contextlib.nullcontext


@pytest.mark.parametrize(
    ("before", "after"),
    [(TWO, TWO), (TWO, THREE), (THREE, WHOLE), (WHOLE, TWO)],
    ids=["the same", "another", "divided before", "divided now"],
)
def test_a_fit_is_continued_with_every_value(
    before: Any,
    after: Any,
    undisturbed: Fitted,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with before():
        fit(tmp_path / "run", 1)
    with after():
        continued = fit(tmp_path / "run", 2)
    assert continued == undisturbed
    said = [message for message in caplog.messages if "NOT bit-identical from here" in message]
    assert bool(said) == (before is not after)
    if said:
        assert "every variable has its exact value, divided among the devices in another way" in said[0]
        assert said[0].startswith("Restored on 1 worker")
        assert "a checkpoint of 1 worker" in said[0]
        assert any(f"({text} columns)" in said[0] for text in "23")
    newest = committed(LocalStore(tmp_path / "run"))[0].manifest
    assert newest is not None
    assert (newest.format, newest.holders) == ((1, ()) if after is WHOLE else (2, (0,)))


def test_commands_take_a_checkpoint_of_a_divided_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(tmp_path / "whole", 1)
    with TWO():
        fit(tmp_path / "run", 1)
    run, whole = str(tmp_path / "run"), str(tmp_path / "whole")
    assert main(["inspect", "--verify", run]) == 0
    capsys.readouterr()
    assert main(["export", run, str(tmp_path / "out.weights.h5")]) == 0
    assert main(["export", run, str(tmp_path / "out.safetensors")]) == 0
    exported = load_file(tmp_path / "out.safetensors")
    for variable in compiled().keras.trainable_variables:
        assert np.array_equal(exported[variable.path], np.asarray(variable))
    capsys.readouterr()
    main(["inspect", "--compare", "newest", whole, run])
    out = capsys.readouterr().out
    assert "hidden/kernel" in out
    assert "values" not in out, "every tensor is identical"
    assert "only in" not in [line for line in out.splitlines() if "kernel" in line]
    assert main(["clean", run]) == 0
