"""One process trains a model on torch; several are refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed

from keras_preempt import PreemptionCallback
from keras_preempt.backend.torch.place import check_alone, neighbours
from keras_preempt.process import environment


@pytest.mark.parametrize("value", ["", "1", "many"])
def test_one_process_is_not_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.TORCH_PROCESSES, value)
    check_alone()


def test_what_torchrun_has_started_is_refused_when_the_callback_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(environment.TORCH_PROCESSES, "2")
    with pytest.raises(
        RuntimeError,
        match=r"Expected one process.*Received: WORLD_SIZE=2.*Keras 3.15 does not.*Start one process",
    ):
        PreemptionCallback(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_processes_that_torch_has_connected_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.TORCH_PROCESSES, raising=False)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    with pytest.raises(RuntimeError, match=r"Received: torch.distributed with 3 processes"):
        check_alone()


def test_workers_of_a_launcher_train_models_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert neighbours(None) is None
    monkeypatch.setenv(environment.KERAS_PROCESSES, "3")
    monkeypatch.setenv(environment.KERAS_PROCESS, "1")
    found = neighbours(None)
    assert found is not None
    assert (found.task, found.members) == ("process 1", 3)
    monkeypatch.setenv(environment.KERAS_PROCESSES, "many")
    assert neighbours(None) is None
