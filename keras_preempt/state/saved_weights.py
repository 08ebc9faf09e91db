"""Reads the weights of a model from a checkpoint, by name, without Keras and without its backend.

A checkpoint holds far more: optimizer slots, metrics, seeds, callbacks. The weights are the variables of the model
without the states of its random generators. Those that can differ between replicas, such as BatchNormalization's
statistics, are there once for each; they are combined into one value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from keras_preempt.checkpoint.finding import CheckpointInfo
from keras_preempt.checkpoint.reader import Reading
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.worker_values import by_replica
from keras_preempt.report.progress import transfer
from keras_preempt.state.regroup import Rule, regroup, rule_of

GROUP = "model/"
"""How the names of the model's variables begin among the tensors of a checkpoint."""

_SEED = re.compile(r"(?:.*/)?seed_generator_state(?:#[0-9]+)?\Z", re.DOTALL)


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
    """Reads the weights, and verifies every byte that is read; raises like `reader.Reading`.

    `rules` say how replicas that differ are combined, by name; by default statistics are averaged, and of integers
    the first replica's value is taken.
    """
    saved, workers = Reading(store, info, transfer).load_all()
    values = {name[len(GROUP) :]: value for name, value in saved.whole.items() if is_weight(name)}
    found: dict[str, list[Array]] = {}
    for own in workers:
        for name, held in by_replica(own.local).items():
            if is_weight(name):
                found.setdefault(name[len(GROUP) :], []).extend(held)
    combined = {}
    for name, replicas in found.items():
        rule = (rules or {}).get(name) or rule_of("none", replicas[0].dtype)
        if len({(value.dtype, value.shape) for value in replicas}) > 1:  # strings, as bytes
            rule, replicas = Rule.FIRST, replicas[:1]
        (values[name],), how = regroup(replicas, 1, rule)
        if any(value.tobytes() != replicas[0].tobytes() for value in replicas):
            combined[name] = "taken from the first replica" if rule is Rule.OWN else how
    return Weights(values, combined)
