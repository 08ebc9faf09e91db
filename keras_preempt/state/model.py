"""The variables of a training run, as each worker holds them.

There are three kinds. *Mirrored* variables (weights that train, optimizer slots) are kept equal on every replica by the
strategy: any worker can write any part of them. *Sharded* ones are divided among the processes: each piece can be
written only by a process that holds it, and each process restores what it holds. *Local* ones (metrics, seeds,
BatchNormalization's moving statistics, the gradients that a replica has accumulated, and everything else that the
strategy does not provably keep equal) can differ between replicas, so each worker saves the value of each of its own.
Reading a replica's part of a local variable is never a collective; reading the variable through the strategy can be.
"""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import keras

from keras_preempt.backend.keras.model_parts import global_seed_state, is_seed_state
from keras_preempt.backend.seam import Runs, backend
from keras_preempt.checkpoint.dtypes import dtype_of
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.values import Box, Value
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.state import sharding
from keras_preempt.state.groups import check_dtype, grouped
from keras_preempt.state.handover import Handover, Waiting, base
from keras_preempt.state.regroup import Rule, rule_of
from keras_preempt.state.variable_names import unique

_GLOBAL_SEED = "keras/global_seed"

ELSEWHERE = "step"
"""The group of variables that a step changes and the model does not hold, such as a global optimizer's."""

SMALL = 1024
"""Bytes up to which a variable is restored twice: when fit begins, and after the callbacks of the resumed epoch."""

_SAMPLED = 8


@dataclass(frozen=True)
class Sizes:
    """Bytes of variables; of divided ones those of an even share of what this process holds, and of all it holds."""

    mirrored: int
    local: int
    share: float
    held: int


class ModelState:
    """The variables of a compiled model.

    Args:
        model: The model.
        strategy: The strategy that it trains under.
        complete: Whether all of its variables exist by now. Otherwise `look_again` finds the later ones, and restored
            values wait for them.
        used: Variables that its training step uses. Those that the model does not hold are saved as well.

    Attributes:
        mirrored: Variables that every replica holds alike, by name.
        local: Variables that can differ between replicas, by name.
        sharded: Variables that are divided among processes, by name.
        named: All of them, in this order.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: Any,
        *,
        complete: bool = True,
        used: Iterable[Any] = (),
    ) -> None:
        self._used = list(used)
        self._variables = backend().variables
        self._model = model
        self._strategy = strategy
        self.complete = complete
        self._handover = Handover(self._components)
        self._find()
        self._at_first_use: dict[str, int] = {}

    def _find(self) -> None:
        model, strategy = self._model, self._strategy
        # Local until the end, since asking a variable that was not used yet for its value calls `look_again`.
        mirrored: dict[str, Any] = {}
        local: dict[str, Any] = {}
        sharded: dict[str, Any] = {}
        small: set[str] = set()
        seen: set[int] = set()
        groups, kept_equal, self._accumulators = grouped(model)
        keras_own = {id(variable.value) for _, variables in groups for variable in variables}
        plain = [v for v in self._variables.plain_variables(model) if id(v.value) not in keras_own]
        groups.append(("attributes", plain))
        seed = global_seed_state()
        held = self._identities(chain(*(v for _, v in groups), [] if seed is None else [seed]))
        elsewhere = [variable for variable in self._used if self._variables.identity(variable) not in held]
        groups.append((ELSEWHERE, [self._variables.named(variable) for variable in elsewhere]))
        for group, variables in groups:
            for variable in variables:
                if id(variable) in seen:
                    continue
                seen.add(id(variable))
                check_dtype(variable)
                name = unique(f"{group}/{variable.path}", ChainMap(mirrored, local, sharded))
                alone = not backend().replicas_differ(strategy)
                # How many bytes strings take is known from their values alone: they cannot be shared out ahead.
                can_be_shared = variable.dtype != "string" and (alone or id(variable) in kept_equal)
                kind = mirrored if can_be_shared else local
                kind = sharded if sharding.is_divided(variable) else kind
                kind[name] = variable
                # A layer may count in a validation too; what is trained does not change there.
                counts = id(variable) not in kept_equal and 4 * math.prod(variable.shape) <= SMALL
                if group == "metrics" or counts or is_seed_state(variable):
                    small.add(name)
        self._real: dict[str, Any] = {**mirrored, **local, **sharded}
        self._small = small | {name for name in self._handover.names if name.startswith("metrics/")}
        self.mirrored: dict[str, Any] = {**mirrored, **self._handover.mirrored}
        self.local: dict[str, Any] = {**local, **self._handover.local}
        self.sharded: dict[str, Any] = sharded
        self.named: dict[str, Any] = {**self.mirrored, **self.local, **self.sharded}

    # -- Capturing and restoring ------------------------------------------------------------------------

    def values(self) -> list[Value]:
        """Returns what the writers store together, in the same order on every worker."""
        pieces = self._variables.pieces
        return [
            *(sharding.value_of(name, variable) for name, variable in self.mirrored.items()),
            *(sharding.value_of(name, each, pieces(each)) for name, each in self.sharded.items()),
        ]

    def needed(self) -> dict[str, list[Box]]:
        """Returns the boxes of divided variables that this process needs of a checkpoint, by name."""
        return {name: sharding.held(name, variable) for name, variable in self.sharded.items()}

    def read(self, boxes: Collection[Box], *, copy: bool = False) -> dict[Box, Array]:
        """Returns the values of boxes that this process holds; of a mirrored variable one run at most.

        `copy` says whether they must outlive the next assignment to the variables.
        """
        runs = {box.tensor: box for box in boxes if box.flat}
        ends = {name: (run.start[0], run.stop[0]) for name, run in runs.items()}
        components = {name: self._components(self.mirrored[name])[0] for name in runs}
        whole = self._read(components, copy=copy, runs=ends)
        found = {run: run.of(whole[name]) for name, run in runs.items()}
        by_tensor: dict[str, list[Box]] = {}
        for box in boxes:
            if not box.flat:
                by_tensor.setdefault(box.tensor, []).append(box)
        for name, held in by_tensor.items():
            values = self._variables.read_pieces(self.sharded[name], held, copy=copy)
            found.update(zip(held, values, strict=True))
        return found

    def capture(self, names: Collection[str] | None = None, *, copy: bool = False) -> WorkerValues:
        """Returns what this process holds of those variables, or of all; `copy` as above."""

        def chosen(variables: Mapping[str, Any]) -> dict[str, Any]:
            return {name: each for name, each in variables.items() if names is None or name in names}

        mirrored = {name: self._components(each)[0] for name, each in chosen(self.mirrored).items()}
        held = {name: sharding.held(name, each) for name, each in chosen(self.sharded).items()}
        values = self.read([box for boxes in held.values() for box in boxes], copy=copy)
        return WorkerValues(
            self._read(mirrored, copy=copy),
            self._read(self._by_replica(chosen(self._local_now())), copy=copy),
            {name: {box: values[box] for box in boxes} for name, boxes in held.items()},
        )

    def capture_local(self, *, copy: bool = False) -> dict[str, Array]:
        """Returns every replica's value of every local variable, as "name@replica"."""
        return self._read(self._by_replica(self._local_now()), copy=copy)

    def capture_changed_by_validation(self, *, weights: bool) -> WorkerValues:
        """Returns the metrics, seeds and small counters; everything if the validation changes weights as well."""
        return self.capture(None if weights else {*self._small, _GLOBAL_SEED}, copy=True)

    def sample(self) -> WorkerValues:
        """Returns the values of a few small weights, enough to see whether somebody has changed the weights."""
        weights = {id(variable) for variable in self._model.trainable_variables}
        names: list[str] = []
        # Of both kinds: whoever changes one may leave the other alone.
        for kind in (self.mirrored, self.sharded):
            small = [
                name
                for name, variable in kind.items()
                if id(variable) in weights and math.prod(variable.shape) <= SMALL
            ]
            names += small[:_SAMPLED]
        return self.capture(names, copy=True)

    def is_like(self, sample: WorkerValues) -> bool:
        """Whether those weights still have the values of a `sample`."""
        present = self.capture({*sample.whole, *sample.boxes}).flat()
        return all(present[name].tobytes() == value.tobytes() for name, value in sample.flat().items())

    def restore(self, values: WorkerValues) -> None:
        """Assigns captured values, replica by replica. Variables without a captured value are left alone.

        A divided variable may have its whole value among them as well, instead of boxes.

        Values whose variables do not exist yet wait for them, and are handed over before these are first used. The
        arrays must not be changed any more: variables may continue to read them.
        """
        backend().before_capture(self._model)
        if self._handover.keep(values.whole, values.local, self._real):
            self._find()
            awaited = set(self.waiting)
            there = [variable for name, variable in self._real.items() if name not in awaited]
            self._handover.watch(there, self.look_again)
        for name, variable in self.mirrored.items():
            if name in values.whole and not isinstance(variable, Waiting):
                self._variables.assign(self._components(variable), values.whole[name])
        for name, variable in self.sharded.items():
            if name in values.boxes:
                self._variables.assign_pieces(variable, values.boxes[name])
            elif name in values.whole:
                sharding.assign_whole(name, variable, values.whole[name])
        # Made only if the checkpoint has it: making it draws from Python's random numbers.
        has_seed = any(name.startswith(f"{_GLOBAL_SEED}@") for name in values.local)
        now = self._local_now(create_seed=has_seed)
        real = {name: variable for name, variable in now.items() if not isinstance(variable, Waiting)}
        for key, part in self._by_replica(real).items():
            if key in values.local:
                self._variables.assign([part], values.local[key])

    # -- Variables that come into being while training ----------------------------------------------------

    def watch_names(self) -> None:
        """Until `ambiguous` is called, notes how many variables of a name there are when one of them is first used."""
        self._handover.watch(list(self._real.values()), self._note)

    def _note(self, used: Any) -> bool:
        self._find()
        names = [base(name) for name, variable in self._real.items() if variable is used]
        for name in names:
            self._at_first_use.setdefault(name, self._counted()[name])
        return bool(names)

    def ambiguous(self) -> list[str]:
        """Returns the names of variables of which one was used before others of the same name existed.

        A restart cannot tell their values apart, as it would have to when the first one is used.
        """
        self._handover.end()
        self._find()
        counted = self._counted()
        return sorted(name for name, count in self._at_first_use.items() if counted[name] > count)

    def _counted(self) -> Counter[str]:
        return Counter(map(base, self._real))

    @property
    def waiting(self) -> list[str]:
        """Names of restored values whose variables do not exist yet."""
        return self._handover.names

    def look_again(self, used: Any = None) -> bool:
        """Finds the variables that have come into being, and hands restored values over to them.

        `used` is a variable that is about to be used for the first time: returns whether it is one of this model by
        now. Raises `UnclaimedValues` if a variable is not the one that was saved, or was used before that was known.
        """
        self._find()
        if self._handover.hand_over(self._real, used):
            self._find()
        return any(each is used for each in self._real.values())

    def metrics_are_reset(self) -> None:
        """Drops the values that wait for metrics: Keras resets the metrics now, but not those it has yet to make."""
        if self.waiting:
            self._handover.drop("metrics/")
            self._find()

    def holds(self, handle: Any) -> bool:
        """Whether a resource, as `Variables.identity` means it, holds the state of one of these variables."""
        return id(handle) in self._identities(self._real.values())

    def holder(self) -> Callable[[Any], bool]:
        """Returns a function: whether a save has the value of a variable, of Keras or of its backend."""
        there, named = self._identities(self._real.values()), self._variables.named
        return lambda v: self._identities([v if isinstance(v, keras.Variable) else named(v)]) <= there

    def _identities(self, variables: Iterable[Any]) -> set[int]:
        there = [variable for variable in variables if not isinstance(variable, Waiting)]
        return {self._variables.identity(part) for each in there for part in self._components(each)}

    def wait_no_more(self) -> None:
        """Gives up the values that wait for variables."""
        self._handover.end()

    def small(self, values: WorkerValues, *, everything: bool = False) -> WorkerValues:
        """Returns copies of the captured values that a callback or Keras may touch before the first step.

        Metrics, seeds, and all that is at most `SMALL` bytes, such as the learning rate; or everything.
        """
        known = self.named if everything else self._small

        def kept(name: str, nbytes: int) -> bool:
            return nbytes <= SMALL or name in known or name.rpartition("@")[0] in known

        return values.select(kept).copied()

    def rules(self) -> dict[str, Rule]:
        """Returns how each variable is converted to another number of replicas than saved it, by name."""
        rules = {
            name: Rule.TOTAL
            if id(variable) in self._accumulators
            else rule_of(
                str(getattr(variable, "aggregation", "none")),
                object if variable.dtype == "string" else dtype_of(variable.dtype),
                seed=is_seed_state(variable),
            )
            for name, variable in self.named.items()
        }
        return {**rules, _GLOBAL_SEED: Rule.OWN}

    def replicas_here(self, name: str) -> int:
        """Returns how many values of a local variable this worker holds."""
        return len(self._components(self.local[name])) if name in self.local else 1

    def mirrored_weights(self) -> list[int]:
        """Returns the indices of those of `model.weights` that are mirrored."""
        mirrored = {id(variable) for variable in self.mirrored.values()}
        return [number for number, weight in enumerate(self._model.weights) if id(weight) in mirrored]

    def signature(self) -> list[dict[str, Any]]:
        """Returns name, shape and dtype of the variables: the identity of model and optimizer."""
        return [
            {"name": name, "shape": [int(n) for n in variable.shape], "dtype": str(variable.dtype)}
            for name, variable in self.named.items()
        ]

    def sizes(self) -> Sizes:
        """Returns how large they are; of strings, whose length is not known yet, the pointers count."""
        share, held, values = 0.0, 0, self.values()
        for value in values:
            mine = set(sharding.held(value.name, self.sharded[value.name])) if value.pieces else set()
            for piece in value.pieces or ():
                if (box := value.box(piece.start, piece.stop)) in mine:
                    share += box.nbytes / len(piece.holders)
                    held += box.nbytes
        return Sizes(
            mirrored=sum(value.nbytes for value in values if value.pieces is None),
            local=sum(
                math.prod(variable.shape)
                * (8 if variable.dtype == "string" else dtype_of(variable.dtype).itemsize)
                for variable in self.local.values()
            ),
            share=share,
            held=held,
        )

    def _local_now(self, *, create_seed: bool = False) -> dict[str, Any]:
        """The local variables, with Keras' global seed if it exists by now."""
        seed = global_seed_state(create=create_seed)
        return self.local if seed is None else {**self.local, _GLOBAL_SEED: seed}

    def _read(
        self, components: Mapping[str, Any], *, copy: bool, runs: Runs | None = None
    ) -> dict[str, Array]:
        backend().before_capture(self._model)
        return self._variables.copies(components, runs or {}) if copy else self._variables.views(components)

    def _by_replica(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the parts of variables as "name@replica"."""
        return {
            f"{name}@{index}": part
            for name, variable in variables.items()
            for index, part in enumerate(self._components(variable))
        }

    def _components(self, variable: Any) -> tuple[Any, ...]:
        if isinstance(variable, Waiting):
            return tuple(variable.values)
        return self._variables.parts(self._strategy, variable)
