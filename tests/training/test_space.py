"""Too little room for a checkpoint is found before training, by the worker that lacks it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.local import LocalStore
from keras_preempt.state.model import ModelState
from keras_preempt.training.space import check_space

MIRRORED, OWN = 4 * 1000, 2 * 10 + 8
SIGNATURE = [
    {"name": "model/kernel", "shape": [10, 100], "dtype": "float32"},
    {"name": "metrics/total", "shape": [10], "dtype": "bfloat16"},
    {"name": "seed", "shape": [], "dtype": "int64"},
]


class Variables:
    """A model of which nothing but the sizes is known."""

    def __init__(self, share: float = 0.0, pieces: int = 0) -> None:
        self._sharded = share, pieces

    def mirrored_signature(self) -> list[dict[str, Any]]:
        return SIGNATURE[:1]

    def local_signature(self) -> list[dict[str, Any]]:
        return SIGNATURE[1:]

    def sharded_sizes(self) -> tuple[float, int]:
        return self._sharded


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


def test_one_worker_needs_room_for_everything(tmp_path: Path) -> None:
    check(tmp_path, MIRRORED + OWN)
    with pytest.raises(StoreUnavailable, match=f"Expected {MIRRORED + OWN} bytes"):
        check(tmp_path, MIRRORED + OWN - 1)


def test_several_workers_need_room_for_a_share_each_and_for_what_is_their_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    needed = MIRRORED // 4 + 2 * OWN
    with pytest.raises(StoreUnavailable, match=f"Expected {needed} bytes"):
        check(tmp_path, needed - 1, members=4, replicas=2)
    with caplog.at_level(logging.WARNING, "keras_preempt"):
        check(tmp_path, MIRRORED + 2 * OWN, members=4, replicas=2)
        assert caplog.text == ""
        check(tmp_path, needed, members=4, replicas=2)
    assert "when all other workers are under notice at once" in caplog.text
    assert f"Expected {MIRRORED + 2 * OWN} bytes" in caplog.text


def test_of_divided_variables_a_worker_needs_room_for_its_own_pieces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At least for its share of those that others hold as well, at most for all that it holds."""
    variables = Variables(share=500.0, pieces=800)
    needed = MIRRORED // 2 + 500 + OWN
    with pytest.raises(StoreUnavailable, match=f"Expected {needed} bytes"):
        check(tmp_path, needed - 1, members=2, variables=variables)
    with caplog.at_level(logging.WARNING, "keras_preempt"):
        check(tmp_path, MIRRORED + 800 + OWN, members=2, variables=variables)
        assert caplog.text == ""
        check(tmp_path, needed, members=2, variables=variables)
    assert f"Expected {MIRRORED + 800 + OWN} bytes" in caplog.text
