"""What a training has started is ended, whatever happens, and once."""

from __future__ import annotations

import os

import pytest

from keras_preempt.training.participant import Ending


def noting(ending: Ending, *names: str) -> list[str]:
    """Adds an end for each name; returns those that were called, each with the reason."""
    ended: list[str] = []
    for name in names:
        ending.add(lambda name=name: ended.append(f"{name}: {ending.why}"))
    return ended


def test_what_was_started_last_is_ended_first_and_nothing_twice() -> None:
    ending = Ending()
    ended = noting(ending, "store", "watcher")
    ending.end("over")
    ending.end("again")
    assert ended == ["watcher: over", "store: over"]


def test_an_end_that_fails_keeps_no_other_from_coming() -> None:
    ending = Ending()
    ended = noting(ending, "store")
    ending.add(lambda: 1 / 0)
    ended_after = noting(ending, "watcher")
    with pytest.raises(ZeroDivisionError):
        ending.end("over")
    assert (ended_after, ended) == (["watcher: over"], ["store: over"])


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
