"""What is said before the first step about how exactly a run will continue."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tensorflow as tf

from keras_preempt.state.input_promise import InputPromise
from keras_preempt.state.shuffles import Shuffles
from keras_preempt.training.promise import Promise, promise

CERTAIN = InputPromise((), "", "by replay")


@dataclass(frozen=True)
class Operation:
    kind: str
    where: str = "train_step (train.py:34)"
    resource: Any = None


def test_bit_identical_is_said_when_nothing_speaks_against_it() -> None:
    said = str(promise(CERTAIN))
    assert said == "After a preemption: bit-identical; the input continues by replay."


AGAINST: dict[str, tuple[Promise, str]] = {
    "the data": (promise(InputPromise((("it has no seed", "Give it one"),), "", "by replay")), "Give it one"),
    "python code in the data": (
        promise(InputPromise((), "its code repeats itself", "by replay")),
        "exact if its",
    ),
    "random numbers in the step": (
        promise(CERTAIN, operations=[Operation("RandomStandardNormal")]),
        "RandomStandardNormal in train_step (train.py:34)",
    ),
    "a seeded one, which starts over, too": (
        promise(CERTAIN, operations=[Operation("RandomUniform")]),
        "keras.random.SeedGenerator",
    ),
    "a generator": (
        promise(CERTAIN, operations=[Operation("RngReadAndSkip", resource="another")], held="held".__eq__),
        "a random generator that no checkpoint holds (in train_step (train.py:34))",
    ),
    "python code in the step": (promise(CERTAIN, operations=[Operation("EagerPyFunc")]), "runs Python code"),
    "a step that cannot be looked at": (
        promise(CERTAIN, operations=None),
        "exact if the training step, which",
    ),
    "a callback": (promise(CERTAIN, callbacks=["Counts"]), "Counts. Give them get_state"),
}


@pytest.mark.parametrize("what", AGAINST)
def test_bit_identical_is_not_said_when_anything_speaks_against_it(what: str) -> None:
    promised, named = AGAINST[what]
    assert "bit-identical" not in str(promised)
    assert named in str(promised)


@pytest.mark.parametrize("what", AGAINST)
def test_not_exact_is_said_only_of_what_is_certain(what: str) -> None:
    promised, _ = AGAINST[what]
    certain = what not in (
        "a callback",
        "a step that cannot be looked at",
        "python code in the step",
        "python code in the data",
    )
    assert str(promised).startswith("NOT exact after a preemption: exact except: ") == certain


def test_a_generator_that_a_checkpoint_holds_is_no_doubt() -> None:
    kept = Operation("RngReadAndSkip", resource="held")
    assert promise(CERTAIN, operations=[kept], held="held".__eq__).doubts == ()


def test_all_doubts_are_one_line_with_the_certain_ones_first() -> None:
    said = str(
        promise(
            CERTAIN, operations=[Operation("EagerPyFunc"), Operation("RandomGamma")], callbacks=["Counts"]
        )
    )
    assert "\n" not in said
    assert said.index("RandomGamma") < said.index("runs Python code")
    assert said.index("RandomGamma") < said.index("Counts")


WHOLE = tf.data.Dataset.range(16)


def _shared(repeated: bool) -> Shuffles:
    shuffled = WHOLE.shuffle(16, seed=1)
    train = shuffled.skip(4).repeat() if repeated else shuffled.skip(4)
    return Shuffles(train.batch(2), shuffled.take(4).batch(2))


def test_a_shared_shuffle_is_exact() -> None:
    shuffles = _shared(repeated=False)
    assert shuffles.shared
    assert promise(CERTAIN, shuffles).doubts == ()


def test_a_shared_shuffle_that_one_of_them_repeats_is_a_doubt() -> None:
    said = str(promise(CERTAIN, _shared(repeated=True)))
    assert said.startswith("NOT exact")
    assert "Split the data before it is shuffled" in said


def test_a_shared_shuffle_that_cannot_be_read_is_a_doubt() -> None:
    unreadable = SimpleNamespace(shared=True, readable=False, shared_while_drawn=False)
    assert "cannot be read" in str(promise(CERTAIN, cast(Any, unreadable)))
