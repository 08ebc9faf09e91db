"""Reads the weights of a model from a checkpoint, by name, without Keras and without its backend.

A checkpoint holds far more: optimizer slots, metrics, seeds, callbacks. The weights are the variables of the model
without the states of its random generators. Those that can differ between replicas, such as BatchNormalization's
statistics, are there once for each; they are combined into one value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from keras_preempt.checkpoint.reader import CheckpointInfo, Reading
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.report.progress import transfer
from keras_preempt.state.regroup import Rule, regroup, rule_of

GROUP = "model/"
"""How the names of the model's variables begin among the tensors of a checkpoint."""

_SEED = re.compile(r"(?:.*/)?seed_generator_state(?:#[0-9]+)?\Z", re.DOTALL)
_REPLICA = re.compile(r"(.*)@([0-9]+)\Z", re.DOTALL)


@dataclass(frozen=True)
class Weights:
    """The weights of a model at one checkpoint.

    Attributes:
        values: The weights by name, which is the path of the variable.
        combined: How the replicas of a weight were combined, in words, by the names of those that differed.
    """

    values: dict[str, Array]
    combined: dict[str, str]


def is_weight(name: str) -> bool:
    """Whether a tensor of that name, without its replica, is a weight of the model."""
    return name.startswith(GROUP) and _SEED.match(name) is None


def read_weights(store: Store, info: CheckpointInfo, rules: Mapping[str, Rule] | None = None) -> Weights:
    """Reads the weights, and verifies every byte that is read.

    Args:
        store: The run's directory.
        info: Which checkpoint.
        rules: How replicas that differ are combined, by name; by default statistics are averaged, and of integers
            the first replica's value is taken.

    Raises:
        CheckpointError: As from `reader.Reading`.
    """
    saved, workers = Reading(store, info, transfer).load_all()
    own = [worker.local for worker in workers]
    values = {name[len(GROUP) :]: value for name, value in saved.whole.items() if is_weight(name)}
    combined = {}
    for name, replicas in _replicas(own):
        rule = (rules or {}).get(name) or rule_of("none", replicas[0].dtype)
        if len({(value.dtype, value.shape) for value in replicas}) > 1:  # strings, as bytes
            rule, replicas = Rule.FIRST, replicas[:1]
        (values[name],), how = regroup(replicas, 1, rule)
        if any(value.tobytes() != replicas[0].tobytes() for value in replicas):
            combined[name] = "taken from the first replica" if rule is Rule.OWN else how
    return Weights(values, combined)


def _replicas(own: list[dict[str, Array]]) -> Iterator[tuple[str, list[Array]]]:
    """Yields the values of each weight that can differ between replicas, of all workers in order."""
    found: dict[str, list[tuple[int, int, Array]]] = {}
    for worker, local in enumerate(own):
        for key, value in local.items():
            match = _REPLICA.match(key)
            if match is not None and is_weight(match[1]):
                found.setdefault(match[1][len(GROUP) :], []).append((worker, int(match[2]), value))
    for name, values in found.items():
        yield name, [value for _, _, value in sorted(values, key=lambda entry: entry[:2])]
