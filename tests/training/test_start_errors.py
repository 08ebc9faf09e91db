"""An error at the start of a fit says that keras_preempt raised it, at what, and what helps."""

from __future__ import annotations

import logging
import sys
import traceback
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_preempt
from keras_preempt.checkpoint.errors import ForeignDirectory
from keras_preempt.training.start_errors import RESTORING, explain, explained

X = np.ones((8, 3), np.float32)


class Stubborn(keras.callbacks.Callback):
    def get_state(self) -> Any:
        return {"thread": object()}

    def set_state(self, state: Any) -> None:
        pass


def _fit(directory: Path, *callbacks: Any) -> None:
    keras.utils.clear_session()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    preemption = keras_preempt.PreemptionCallback(directory)
    model.fit(X, X[:, :1], verbose=0, callbacks=[preemption, *callbacks])


def _told(error: BaseException, caplog: pytest.LogCaptureFixture) -> str:
    return "".join(traceback.format_exception(error)) + caplog.text


def test_a_directory_of_somebody_elses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ForeignDirectory) as caught:
        _fit(tmp_path)
    told = _told(caught.value, caplog)
    assert "keras_preempt raised this at the start of fit, while it claimed the checkpoint directory" in told
    assert "Nothing was trained." in told


def test_state_that_cannot_be_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TypeError, match="Expected plain data") as caught:
        _fit(tmp_path / "run", Stubborn())
    told = _told(caught.value, caplog)
    assert (
        "while it tried out, before the first step, whether the state of the callbacks can be saved" in told
    )
    assert "take the PreemptionCallback out" in told


def test_an_error_of_training_itself_is_the_users_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise ArithmeticError

        def get_state(self) -> Any:
            return {}

        def set_state(self, state: Any) -> None:
            pass

    with pytest.raises(ArithmeticError) as caught:
        _fit(tmp_path / "run", Failing())
    assert "keras_preempt raised this" not in _told(caught.value, caplog)


def test_it_is_said_once_and_where_there_are_no_notes_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="x") as caught, explained(RESTORING), explained(RESTORING):
        raise ValueError("x")
    if sys.version_info >= (3, 11):
        assert len(caught.value.__notes__) == 1

    class Old(Exception):
        add_note = None

    with caplog.at_level(logging.ERROR, logger="keras_preempt"):
        explain(Old("of long ago"), RESTORING)
    assert (
        "of long ago. keras_preempt raised this at the start of fit, while it restored a checkpoint"
        in caplog.text
    )
    explain(SystemExit(75), RESTORING)
