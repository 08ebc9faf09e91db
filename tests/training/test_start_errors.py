"""What ends a start is found and told before training; what was begun is ended, whatever happens, and once."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import keras_preempt
from keras_preempt.checkpoint.errors import ForeignDirectory, StoreUnavailable
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.state.model import ModelState, Sizes
from keras_preempt.training.leave.start_errors import RESTORING, explain, explained
from keras_preempt.training.run.participant import Ending
from keras_preempt.training.save.space import check_space
from tests import fits
from tests.cluster.noticed_fit import Model

X = np.ones((8, 4), np.float32)

compiled = functools.cache(Model)


def _fit(directory: Path, *callbacks: Any) -> None:
    fits.forget()
    preemption = keras_preempt.PreemptionCallback(directory)
    compiled().keras.fit(X, X[:, :1], verbose=0, callbacks=[preemption, *callbacks])


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
    stubborn = fits.Doing()
    vars(stubborn)["get_state"] = lambda: {"thread": object()}
    with pytest.raises(TypeError, match="Expected plain data") as caught:
        _fit(tmp_path / "run", stubborn)
    told = _told(caught.value, caplog)
    expected = "while it tried out, before the first step, whether the state of the callbacks can be saved"
    assert expected in told
    assert "take the PreemptionCallback out" in told


def test_an_error_of_training_is_the_users_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyError, match="by the test") as caught:
        _fit(tmp_path / "run", fits.Doing(on_train_batch_end=fits.fail))
    assert "keras_preempt raised this" not in _told(caught.value, caplog)


def test_it_is_said_once_and_where_there_are_no_notes_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="x") as caught, explained(RESTORING), explained(RESTORING):
        raise ValueError("x")
    if sys.version_info >= (3, 11):
        assert len(caught.value.__notes__) == 1

    class Old(Exception):
        add_note = None

    explain(Old("of long ago"), RESTORING)
    expected = "of long ago. keras_preempt raised this at the start of fit, while it restored a checkpoint"
    assert expected in caplog.text
    explain(SystemExit(75), RESTORING)


MIRRORED, OWN = 4 * 1000, 2 * 10 + 8


class Variables:
    """A model of which nothing but the sizes is known."""

    def __init__(self, share: float = 0.0, pieces: int = 0) -> None:
        self._sharded = share, pieces

    def sizes(self) -> Sizes:
        return Sizes(MIRRORED, OWN, *self._sharded)


class Disk(LocalStore):
    """A directory with that many bytes free."""

    def __init__(self, path: Path, free: int) -> None:
        super().__init__(path)
        self._free = free

    def check_space(self, size: int) -> None:
        if size > self._free:
            raise StoreUnavailable(f"Expected {size} bytes. Received: {self._free}.")


def check(
    path: Path, free: int, members: int = 1, replicas: int = 1, variables: Variables | None = None
) -> None:
    check_space(Disk(path, free), cast(ModelState, variables or Variables()), members, replicas)


@pytest.mark.parametrize(
    ("members", "replicas", "variables", "needed", "most"),
    [
        (1, 1, Variables(), MIRRORED + OWN, MIRRORED + OWN),
        (4, 2, Variables(), MIRRORED // 4 + 2 * OWN, MIRRORED + 2 * OWN),
        (2, 1, Variables(share=500.0, pieces=800), MIRRORED // 2 + 500 + OWN, MIRRORED + 800 + OWN),
    ],
    ids=["one worker", "mirrored", "divided"],
)
def test_each_worker_needs_room_for_a_share_and_for_what_is_its_own(
    members: int,
    replicas: int,
    variables: Variables,
    needed: int,
    most: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of divided variables at least for the share of those that others hold as well, at most for all they hold."""
    with pytest.raises(StoreUnavailable, match=f"Expected {needed} bytes"):
        check(tmp_path, needed - 1, members, replicas, variables)
    check(tmp_path, most, members, replicas, variables)
    assert caplog.text == ""
    check(tmp_path, needed, members, replicas, variables)
    assert ("when all other workers are under notice at once" in caplog.text) == (needed < most)
    assert (f"Expected {most} bytes" in caplog.text) == (needed < most)


def noting(ending: Ending, *names: str) -> list[str]:
    """Adds an end for each name; returns those that were called, each with the reason."""
    ended: list[str] = []
    for name in names:
        ending.add(lambda name=name: ended.append(f"{name}: {ending.why}"))
    return ended


def test_what_was_started_last_is_ended_first_nothing_twice_and_a_failing_end_keeps_none_back() -> None:
    ending = Ending()
    ended = noting(ending, "store", "watcher")
    ending.add(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ending.end("over")
    ending.end("again")
    assert ended == ["watcher: over", "store: over"]


def test_an_error_at_the_start_ends_what_was_started_until_then() -> None:
    ending = Ending()
    ended = noting(ending, "store")
    with pytest.raises(KeyError, match="gone"), ending.on_error():
        raise KeyError("gone")
    assert ended == ["store: KeyError at the start: 'gone'"]


def test_a_forked_process_ends_nothing_of_its_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = Ending()
    ended = noting(ending, "store")
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        ending.end("over")
        assert ending.over
        assert ended == []
    ending.end("over")
    assert ended == ["store: over"]
