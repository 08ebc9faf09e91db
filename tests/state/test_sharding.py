"""Variables that are divided among processes: captured in pieces, and restored from pieces or whole values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest

import keras_preempt
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.values import Box, Piece, Point, check_cover
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state.model import SMALL
from tests import fits
from tests.state.test_model import state_of


class Divided:
    """The variables of one process, whole ones of TensorFlow, of which it says that it holds some columns.

    What lies outside of these is spoilt, so that nobody can have read it from here. All else is mirrored.

    Args:
        member: The process.
        holders: Which processes hold each of the pieces, from left to right.
    """

    def __init__(self, member: int, holders: Sequence[tuple[int, ...]]) -> None:
        self._real: Any = backend().variables
        self._member = member
        self._holders = holders

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def pieces(self, variable: Any) -> tuple[Piece, ...] | None:
        if len(variable.shape) != 2 or variable.shape[1] < len(self._holders):
            return None
        rows, columns = variable.shape
        parts = len(self._holders)
        borders = [columns * n // parts for n in range(parts + 1)]
        return tuple(Piece((0, borders[n]), (rows, borders[n + 1]), by) for n, by in enumerate(self._holders))

    def needed(self, variable: Any) -> tuple[tuple[Point, Point], ...]:
        pieces = self.pieces(variable)
        assert pieces is not None
        return tuple((piece.start, piece.stop) for piece in pieces if self._member in piece.holders)

    def read_pieces(self, variable: Any, boxes: Sequence[Box], *, copy: bool) -> list[Array]:
        assert {(box.start, box.stop) for box in boxes} <= set(self.needed(variable))
        return [np.array(box.of(variable.value.numpy())) for box in boxes]

    def assign_pieces(self, variable: Any, values: Mapping[Box, Array]) -> None:
        assert {(box.start, box.stop) for box in values} == set(self.needed(variable))
        whole = np.full(variable.shape, 77, variable.value.numpy().dtype)
        for box, value in values.items():
            assert value.shape == box.extent
            box.of(whole)[...] = value
        variable.assign(whole)

    def copies(self, components: Mapping[str, Any], runs: Any) -> dict[str, Array]:
        self._refuse(components)
        return self._real.copies(components, runs)

    def views(self, components: Mapping[str, Any]) -> dict[str, Array]:
        self._refuse(components)
        return self._real.views(components)

    def _refuse(self, components: Mapping[str, Any]) -> None:
        for part in components.values():
            assert isinstance(part, np.ndarray) or self.pieces(part) is None, "read as if it were here whole"


@contextmanager
def divided(member: int, holders: Sequence[tuple[int, ...]]) -> Iterator[Divided]:
    """Makes this process one of several among which matrices are divided."""
    variables = Divided(member, holders)
    with mock.patch.object(backend(), "variables", variables):
        yield variables


X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4)
HOLDERS = [(0,), (0, 1), (1,)]


def bare(seed: int = 0) -> keras.Model:
    """Without variables as yet."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.layers.Dense(300), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    return model


def build(model: keras.Model) -> None:
    model.build((None, 4))
    model.optimizer.build(model.trainable_variables)


def made(seed: int = 0) -> keras.Model:
    model = bare(seed)
    build(model)
    for variable in model.optimizer.variables:
        if len(variable.shape) == 2:
            variable.assign(keras.random.uniform(variable.shape))
    return model


def values(model: keras.Model) -> dict[str, Array]:
    """All variables as they are, by the names of a checkpoint."""
    return {name: np.array(value) for name, value in state_of(model).capture().whole.items()}


def test_a_divided_variable_is_neither_mirrored_nor_local_and_the_identity_is_the_same() -> None:
    model = made()
    plain = state_of(model)
    with divided(0, HOLDERS):
        state = state_of(model)
        divided_names = {"model/sequential/dense/kernel", "optimizer/adam/sequential_dense_kernel_momentum"}
        assert divided_names <= state.sharded.keys()
        assert not state.sharded.keys() & {*state.mirrored, *state.local}
        assert sorted(map(str, state.signature())) == sorted(map(str, plain.signature()))
        assert state.rules() == plain.rules()
        mirrored = len(plain.mirrored) - len(state.sharded)
        assert len(state.values()) - len(state.sharded) == len(state.mirrored) == mirrored
    assert plain.sharded == {}
    assert all(value.pieces is None for value in plain.values())
    assert plain.needed() == {}


def test_two_processes_hold_all_of_the_model_and_each_reads_its_own_alone() -> None:
    model = made()
    whole = values(model)
    found: dict[Box, Array] = {}
    for member in range(2):
        with divided(member, HOLDERS):
            state = state_of(model)
            specs = [value for value in state.values() if value.pieces is not None]
            boxes = [box for held in state.needed().values() for box in held]
            found.update(state.read(boxes, copy=True))
            sizes = state.sizes()
            assert sizes.held == sum(box.nbytes for box in boxes)
            assert sizes.share == sum(
                box.nbytes / (2 if (box.start[1] and box.stop[1] != box.shape[1]) else 1) for box in boxes
            )
    check_cover(found, specs)
    for box, value in found.items():
        assert np.array_equal(value, box.of(whole[box.tensor]))


@pytest.mark.parametrize("member", [0, 1])
def test_a_process_restores_what_it_holds_from_pieces_or_from_a_whole_value(member: int) -> None:
    old = values(made(seed=1))
    for as_pieces in (True, False):
        model = made(seed=2)
        with divided(member, HOLDERS):
            state = state_of(model)
            boxes = {name: {box: box.of(old[name]) for box in own} for name, own in state.needed().items()}
            mirrored = {name: value for name, value in old.items() if name in state.mirrored or not as_pieces}
            state.restore(WorkerValues(mirrored, {}, boxes if as_pieces else {}))
            held = state.needed()
        new = values(model)
        for name, value in new.items():
            if name not in held:
                assert value.tobytes() == old[name].tobytes(), name
            for box in held.get(name, ()):
                assert np.array_equal(box.of(value), box.of(old[name])), box.key


def test_a_whole_value_of_another_shape_is_refused() -> None:
    expected = r"Expected a value of model/.*kernel as float32\[4, 300\]\. Received: "
    with divided(0, HOLDERS), pytest.raises(ValueError, match=expected):
        state_of(made()).restore(
            WorkerValues({"model/sequential/dense/kernel": np.zeros((4, 299), np.float32)})
        )


def test_what_a_validation_changes_is_kept_of_divided_variables_too() -> None:
    with divided(0, HOLDERS):
        state = state_of(made())
        assert state.capture_changed_by_validation(weights=False).boxes == {}
        kept = state.capture_changed_by_validation(weights=True).boxes
        assert {name: list(held) for name, held in kept.items()} == state.needed()


@pytest.mark.parametrize("sampled", [8, 1])
def test_a_change_of_a_small_divided_weight_shows_however_many_mirrored_ones_there_are(
    sampled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keras_preempt.state.model._SAMPLED", sampled)
    model = made()
    with divided(0, HOLDERS):
        state = state_of(model)
        for variable in model.trainable_variables:  # What is mirrored stays as it is.
            if len(variable.shape) == 1:
                variable.assign(variable * 0)
        sample = state.sample()
        assert state.is_like(sample)
        kernels = [v for v in state.sharded.values() if id(v) in {id(w) for w in model.trainable_variables}]
        changed = next(v for v in kernels if np.prod(v.shape) <= SMALL)
        changed.assign(changed + 1)
        assert not state.is_like(sample)


def test_small_divided_variables_are_handed_over_twice_like_others() -> None:
    with divided(0, HOLDERS):
        state = state_of(made())
        values = state.capture(copy=True)
        boxes, small = values.boxes, state.small(values).boxes
        sizes = {name: sum(value.nbytes for value in held.values()) for name, held in boxes.items()}
        assert small.keys() == {name for name, size in sizes.items() if size <= SMALL}
        for name, held in small.items():
            for box, value in held.items():
                assert value is not boxes[name][box]
                assert np.array_equal(value, boxes[name][box])


def test_weights_of_a_checkpoint_are_loaded_into_a_divided_model(tmp_path: Path) -> None:
    fits.forget()
    model = made(seed=3)
    model.fit(X, X[:, :1], batch_size=8, verbose=0, callbacks=[keras_preempt.PreemptionCallback(tmp_path)])
    old, new = values(model), made(seed=4)
    with divided(1, HOLDERS):
        held = state_of(new).needed()
        keras_preempt.load_weights(new, tmp_path)
    now = values(new)
    for name in now:
        if name.startswith("model/") and name in held:
            for box in held[name]:
                assert np.array_equal(box.of(now[name]), box.of(old[name]))
            assert (now[name][:, :2] == 77).any(), "what this process does not hold is not its to assign"
        elif name.startswith("model/"):
            assert now[name].tobytes() == old[name].tobytes()


def test_a_divided_variable_that_is_made_later_takes_what_its_process_holds_of_what_waited() -> None:
    old, model = values(made(seed=1)), bare()
    with divided(0, HOLDERS):
        state = state_of(model, complete=False)
        state.restore(WorkerValues(old))
        assert "model/sequential/dense/kernel" in state.waiting
        assert state.sharded == {}
        build(model)
        state.look_again()
        assert state.waiting == []
        held = state.needed()
        assert len(held) == 6
        for box, value in state.read([box for boxes in held.values() for box in boxes]).items():
            assert np.array_equal(value, box.of(old[box.tensor])), box.key
    whole = bare()
    state = state_of(whole, complete=False)
    state.restore(WorkerValues(old))
    build(whole)
    state.look_again()  # To look at variables is their first use, at which everybody looks again.
    assert {*state.mirrored} == {*old}
