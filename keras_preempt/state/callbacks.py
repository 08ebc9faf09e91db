"""The state of the other callbacks of the fit: counters, best values, History.

Keras resets most of them when `fit` begins, so they are restored later, at the first epoch. A callback of the user's
takes part through its attributes (see `attributes`), or through a pair of methods: `get_state()` returns plain data
(numbers, strings, arrays, lists, dictionaries), and `set_state(state)` takes it back.

The file of rows that a CSVLogger writes is part of its state. Keras empties it when `fit` begins, or continues at its
end: a restart would lose the rows of the earlier epochs, or, after a kill, have the rows of repeated epochs twice. The
file may also have stayed on another machine. So a checkpoint holds the rows, and a restore puts them back.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_preempt.backend.keras.callbacks import (
    CALLBACK_STATE,
    COPIES_OF_WEIGHTS,
    STATELESS_CALLBACKS,
    flush_summaries,
    take_up_step,
    variables_of,
)
from keras_preempt.backend.keras.model_parts import layers_of
from keras_preempt.backend.user_code import is_a
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state import background_saves, plain
from keras_preempt.state.attributes import KEEPS, Attributes
from keras_preempt.state.callback_code import (
    BEFORE_STEP,
    BEGIN_HOOKS,
    TEST_HOOKS,
    TRACING,
    WHILE_TRAINING,
    HookCode,
    may_be_trainable,
    variables_in,
)
from keras_preempt.state.component import Component, RestoreMoment, StoredState
from keras_preempt.state.lost_state import unkept

logger = logging.getLogger("keras_preempt")

CHANGES_WEIGHTS = "changes_weights_in_validation"
"""The attribute by which a user's callback says whether it puts other weights into the model for a validation.

Without it, its code is read."""

_ROWS = "rows"

LARGEST_FILE = 16 << 20
"""The most bytes of a file of rows that a checkpoint holds."""

_OF_OTHER_LIBRARIES: dict[str, tuple[str, ...]] = {
    "keras_tuner.SaveBestEpoch": ("best_value",),
    "keras_tuner.TunerCallback": (),
}
"""The attributes that are the state of callbacks of libraries on top of Keras, by library and class."""


def refuse_rivals(callbacks: Iterable[keras.callbacks.Callback]) -> None:
    """Raises `ValueError` if one of them restores by itself: a BackupAndRestore."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ValueError(
                "Expected the PreemptionCallback to be the only callback that restores. Received: "
                f"{type(callback).__name__} beside it, which would put older weights over the restored ones. Remove "
                'it; for saves while nothing happens there is PreemptionCallback(..., save_every="epoch").'
            )


class TrainedLayers:
    """Which layers and variables are trained, where callbacks change that while training goes on; else without a model.

    A traced training step keeps what was trainable when it was traced, and its optimizer was built for that: in plain
    Keras it does not train a layer that a callback unfreezes later. So a restarted process traces its step with what
    was trainable then, and goes on with what was trainable at the save.
    """

    def __init__(self, model: keras.Model | None) -> None:
        self._model = model
        self._traced: str | None = None

    def epoch_has_begun(self) -> None:
        """Called when the other callbacks have begun an epoch; in the first one, the step is traced next."""
        if self._model is not None and self._traced is None:
            self._traced = self._now()

    def capture(self) -> dict[str, Any] | None:
        return None if self._model is None else {"traced": self._traced, "now": self._now()}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        if state is not None:
            self._set(state["now"])

    @contextlib.contextmanager
    def as_traced(self, state: Mapping[str, Any]) -> Iterator[None]:
        """Trains in the block what was trained when the saved step was traced, and after it what was at the save."""
        self._traced = state["traced"]
        self._set(self._traced)
        try:
            model = self._model  # None if the script has lost the callback since.
            if model is not None and model.run_eagerly and is_a(model.optimizer, keras.optimizers.Optimizer):
                model.optimizer.build(model.trainable_variables)  # No trace does it.
            yield
        finally:
            self.restore(state)

    def _parts(self) -> list[Any]:
        return [] if self._model is None else [*layers_of(self._model), *self._model.weights]

    def _now(self) -> str:
        return "".join("01"[bool(part.trainable)] for part in self._parts())

    def _set(self, flags: str | None) -> None:
        parts = self._parts()
        if flags is None or len(flags) != len(parts):
            return  # Some layers were not built yet, or are not now: the first step builds them.
        for _ in range(2):  # Setting a layer sets those in it, too.
            for part, flag in zip(parts, flags, strict=True):
                if part.trainable != (flag == "1"):
                    part.trainable = flag == "1"


class CallbackStates(Component):
    """The state of the callbacks of one fit, without this package's own.

    `held` says whether a checkpoint has the value of a variable, as the model or the training step uses it;
    `mirrored_weights` returns the indices of those of `model.weights` that all workers hold alike.

    Attributes:
        users: The callbacks of the user's without get_state and set_state, by name.
        lost: Those of them with what of their state cannot be saved, in words.
        unsaved: The words alone.
        attributes: The attributes of users' callbacks.
        trained: What is trained, if callbacks change that.
        change_weights: Whether one of them puts other weights into the model for a validation, or could.
        set_weights_at_begin: Whether one of them could change weights before the first step of a restarted process.
    """

    later = ("callbacks/",)

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        held: Callable[[Any], bool] = lambda variable: False,
        mirrored_weights: Callable[[], list[int]] = list,
    ) -> None:
        self._all, self._held, self._mirrored_weights = callbacks, held, mirrored_weights
        self._differences_told = False
        self._named: dict[str, keras.callbacks.Callback] = {}
        self.users: dict[str, keras.callbacks.Callback] = {}
        self._appending: list[keras.callbacks.CSVLogger] = []
        self.change_weights = self.set_weights_at_begin = False
        for callback in callbacks:
            said = getattr(callback, CHANGES_WEIGHTS, None)
            if isinstance(callback, keras.callbacks.SwapEMAWeights):
                said = True
            self.change_weights |= (
                HookCode(callback, TEST_HOOKS).may_change_weights if said is None else bool(said)
            )
            self.set_weights_at_begin |= HookCode(callback, BEGIN_HOOKS).may_change_weights
            if plain.has_state_methods(callback) or _state_attributes(callback) is not None:
                self._named[_unique(callback, self._named)] = callback
            kind = type(callback)
            known = (
                kind in CALLBACK_STATE
                or kind in STATELESS_CALLBACKS
                or _library_name(kind) in _OF_OTHER_LIBRARIES
            )
            if not known and not plain.has_state_methods(callback) and getattr(callback, KEEPS, True):
                self.users[_unique(callback, self.users)] = callback
        self.attributes = Attributes(self.users)
        self._set = {found for each in self._read() for found in each.set_outside(variables=False)}
        self.trained = TrainedLayers(callbacks[0].model if may_be_trainable(self._set) else None)
        self.lost = [
            (callback, each)
            for name, callback in self.users.items()
            for each in unkept(callback, self.attributes, name, held)
        ]
        self.unsaved = [what for _, what in self.lost]

    def _read(self) -> list[HookCode]:
        """Not kept: it holds what callbacks use as the fit begins, and may drop while they train."""
        return [HookCode(each, WHILE_TRAINING) for each in self._all]

    def sets(self, *, constant: bool) -> list[str]:
        """Returns what callbacks set while training goes on that a step keeps as it was in its first run.

        What is trained is not among it: that is kept (see `TrainedLayers`), unless it is set right before a step or a
        callback may have the step traced anew. If `constant`, the step keeps also the values of variables that no
        checkpoint holds.
        """
        found, read = self._set, self._read()
        if all(each.names.isdisjoint(TRACING) for each in read):
            before_step = {
                each
                for callback in self._all
                for each in HookCode(callback, BEFORE_STEP).set_outside(variables=False)
            }
            found = {each for each in found if not each.startswith("trainable ") or each in before_step}
        assigned = {
            f"{each.name} (in {type(callback).__name__})"
            for callback, code in zip(self._all, read, strict=True)
            if constant and code.may_change_weights
            for each in code.uses_variables()
            if not variables_of(each.value) and not all(map(self._held, variables_in(each.value)))
        }
        return sorted(found) + sorted(assigned)

    def capture(self, phase: str, values: WorkerValues) -> dict[str, Any]:
        """Raises `TypeError` if `get_state` of a callback returns anything but plain data."""
        arrays = values.local
        states = {}
        weights = set()  # Names of copies of `model.weights`.
        for name, callback in self._named.items():
            names = _state_attributes(callback) or ()
            weights |= {f"callbacks/{name}/{each}" for each in COPIES_OF_WEIGHTS.intersection(names)}
            if plain.has_state_methods(callback):
                # A callback of the user's may go on changing its arrays in place; Keras' own replace them.
                own: dict[str, Array] = {}
                states[name] = plain.encode(callback.get_state(), own, f"callbacks/{name}")
                arrays.update((key, array.copy()) for key, array in own.items())
            else:
                state = {key: getattr(callback, key) for key in names if hasattr(callback, key)}
                if isinstance(callback, keras.callbacks.CSVLogger):
                    path, state[_ROWS] = _local(callback), None
                    if path is not None and path.is_file() and path.stat().st_size <= LARGEST_FILE:
                        state[_ROWS] = np.frombuffer(path.read_bytes(), dtype=np.uint8)
                states[name] = plain.encode(state, arrays, f"callbacks/{name}")
        fields = {
            "callbacks": states,
            "attributes": self.attributes.capture(arrays),
            "trained": self.trained.capture(),
        }
        # Copies of mirrored weights are as alike on all workers as the weights: the writers share them too.
        mirrored = self._mirrored_weights() if weights else ()
        shared = {f"{path}/{number}" for path in weights for number in mirrored}
        values.whole.update({name: arrays.pop(name) for name in sorted(shared & arrays.keys())})
        return fields

    @property
    def files(self) -> dict[str, str]:
        """The files whose rows `capture` reads, by the names of their arrays."""
        return {
            f"callbacks/{name}/{_ROWS}": os.path.abspath(callback.filename)
            for name, callback in self._named.items()
            if _writes_rows(callback)
        }

    def flush(self, left: float | None) -> None:
        """Writes what callbacks have buffered, and waits for what they save; the machine goes in `left` seconds."""
        for callback in self._named.values():
            if isinstance(callback, keras.callbacks.TensorBoard):
                flush_summaries(callback)
        background_saves.wait(self._all, left)

    def begin_again_without_state(self) -> None:
        """Warns of rows of lost steps: training begins from nothing although it had begun before."""
        for callback in self._named.values():
            if not isinstance(callback, keras.callbacks.CSVLogger) or not callback.append:
                continue
            path = _local(callback)
            if path is not None and path.is_file() and path.stat().st_size > 0:
                logger.warning(
                    "Training begins again without a checkpoint, and CSVLogger goes on in %s: rows of epochs that an "
                    "earlier start wrote and lost stay there, and come a second time. Remove them, or the file.",
                    callback.filename,
                )

    def restore(self, saved: StoredState, moment: RestoreMoment) -> None:
        states, arrays = saved.state["callbacks"], saved.arrays
        if moment is RestoreMoment.BEGIN:
            self._restore_files(states, arrays)
            return
        while self._appending:
            self._appending.pop().append = False
        for name, callback in self._named.items():
            if name not in states:
                continue
            state = plain.decode(states[name], arrays)
            if plain.has_state_methods(callback):
                callback.set_state(state)
                continue
            if not isinstance(state, dict):
                raise ValueError(f"Expected the state of {name}. Received: {state!r:.100}.")
            # Only what `capture` takes: another attribute could be the path of a file that Keras writes to.
            for key in _state_attributes(callback) or ():
                if key in state:
                    setattr(callback, key, state[key])
            if isinstance(callback, keras.callbacks.TensorBoard):
                take_up_step(callback)
        gone = [f"{name} is in the checkpoint, not in this fit" for name in states if name not in self._named]
        new = [f"{name} is in this fit, not in the checkpoint" for name in self._named if name not in states]
        for difference in () if self._differences_told else gone + new:
            logger.warning("The callbacks differ: %s. It begins without its saved state.", difference)
        self._differences_told = True
        self.attributes.restore(saved.state.get("attributes", {}), arrays)  # Absent before release 0.3.
        self.trained.restore(saved.state.get("trained"))

    def _restore_files(self, states: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Makes the files of callbacks what they were, so that these can continue at their end."""
        for name, callback in self._named.items():
            if name not in states or not _writes_rows(callback):
                continue
            state = plain.decode(states[name], arrays)
            if not isinstance(state, dict) or not isinstance(state.get(_ROWS), np.ndarray):
                continue
            if callback.csv_file is not None:
                callback.csv_file.close()
            if (path := _local(callback)) is not None:
                _put_rows_back(path, state[_ROWS].tobytes())
            if not callback.append:  # Keras would begin the file anew.
                callback.append = True
                self._appending.append(callback)
            callback.on_train_begin()  # It may have begun already, and found another file.


def _unique(callback: keras.callbacks.Callback, names: Iterable[str]) -> str:
    name = type(callback).__name__
    number = sum(key.partition("#")[0] == name for key in names)
    return f"{name}#{number + 1}" if number else name


def _state_attributes(callback: keras.callbacks.Callback) -> tuple[str, ...] | None:
    for kind in type(callback).__mro__:
        if kind in CALLBACK_STATE:
            return CALLBACK_STATE[kind]
        if _library_name(kind) in _OF_OTHER_LIBRARIES:
            return _OF_OTHER_LIBRARIES[_library_name(kind)]
    return None


def _library_name(kind: type) -> str:
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"


def _writes_rows(callback: keras.callbacks.Callback) -> bool:
    return isinstance(callback, keras.callbacks.CSVLogger) and not plain.has_state_methods(callback)


def _local(callback: keras.callbacks.CSVLogger) -> Path | None:
    """Returns the file of rows; None if it is in a remote file system."""
    name = str(callback.filename)
    return None if "://" in name else Path(name)


def _put_rows_back(path: Path, wanted: bytes) -> None:
    """Makes the file what it was; warns, and leaves it, if it neither begins with those rows nor is their beginning."""
    present = path.read_bytes() if path.is_file() else b""
    if present == wanted:
        return
    if not (present.startswith(wanted) or wanted.startswith(present)):
        logger.warning(
            "CSVLogger: expected %s to begin as it was when the checkpoint was made. Received: other rows. It is left "
            "as it is, and what comes now is added at its end.",
            path,
        )
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(wanted)
