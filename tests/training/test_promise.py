"""What is said before the first step about how exactly a run will continue."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tensorflow as tf

from keras_preempt.state.input_exactness import InputExactness
from keras_preempt.state.shuffles import Shuffles
from keras_preempt.training.save.promise import Promise, StepFacts, promise

CERTAIN = InputExactness((), "", "by replay")


@dataclass(frozen=True)
class Operation:
    kind: str
    where: str = "train_step (train.py:34)"
    resource: Any = None


def test_bit_identical_is_said_when_nothing_speaks_against_it() -> None:
    said = str(promise(CERTAIN))
    assert said == "After a preemption: bit-identical; the input continues by replay."


def of_data(*found: tuple[str, str], condition: str = "") -> Promise:
    return promise(InputExactness(found, condition, "by replay"))


def of_step(kind: str, **resource: str) -> Promise:
    return promise(CERTAIN, step=StepFacts([Operation(kind, **resource)], "held".__eq__))


def of_shuffle(*, repeated: bool) -> Promise:
    """Training and validation data come from one shuffle, which one of them may repeat."""
    shuffled = tf.data.Dataset.range(16).shuffle(16, seed=1)
    train = shuffled.skip(4).repeat() if repeated else shuffled.skip(4)
    shuffles = Shuffles(train.batch(2), shuffled.take(4).batch(2))
    assert shuffles.shared
    return promise(CERTAIN, shuffles)


UNREADABLE = cast(Any, SimpleNamespace(shared=True, readable=False, shared_while_drawn=False))


@pytest.mark.parametrize(
    ("promised", "named", "certain"),
    [
        (of_data(("it has no seed", "Give it one")), "Give it one", True),
        (of_data(condition="its code repeats itself"), "exact if its", False),
        (of_step("RandomStandardNormal"), "RandomStandardNormal in train_step (train.py:34)", True),
        (of_step("RandomUniform"), "keras.random.SeedGenerator", True),  # Also a seeded one: it starts over.
        (
            of_step("RngReadAndSkip", resource="another"),
            "generator that no checkpoint holds (in train_step",
            True,
        ),
        (of_step("EagerPyFunc"), "runs Python code", False),
        (promise(CERTAIN, step=StepFacts(None)), "exact if the training step, which", False),
        (promise(CERTAIN, callbacks=["Counts"]), "Counts. Give them get_state", False),
        (of_shuffle(repeated=True), "Split the data before it is shuffled", True),
        (promise(CERTAIN, UNREADABLE), "cannot be read", True),
        (promise(CERTAIN, step=StepFacts(unordered_sums="Set XLA_FLAGS")), "a GPU adds numbers", False),
    ],
)
def test_what_speaks_against_it_is_said_and_not_exact_only_of_what_is_certain(
    promised: Promise, named: str, certain: bool
) -> None:
    assert "bit-identical" not in str(promised)
    assert named in str(promised)
    assert str(promised).startswith("NOT exact after a preemption: exact except: ") == certain


def test_a_generator_that_a_checkpoint_holds_and_a_shuffle_that_nobody_repeats_are_no_doubt() -> None:
    assert of_step("RngReadAndSkip", resource="held").doubts == ()
    assert of_shuffle(repeated=False).doubts == ()


def test_all_doubts_are_one_line_with_the_certain_ones_first() -> None:
    operations = [Operation("EagerPyFunc"), Operation("RandomGamma")]
    said = str(promise(CERTAIN, step=StepFacts(operations), callbacks=["Counts"]))
    assert "\n" not in said
    assert said.index("RandomGamma") < said.index("runs Python code")
    assert said.index("RandomGamma") < said.index("Counts")
