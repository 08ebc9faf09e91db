"""What a user is told before the first step about how exactly a run will continue after a preemption.

All that the run depends on is gathered here: the training and the validation data, the training step, the other
callbacks. "bit-identical" is said if nothing speaks against it; otherwise one line names each thing that does, and how
to put it right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from keras_preempt.backend.operations import RandomOperation
from keras_preempt.state.callback_cure import cure
from keras_preempt.state.input_exactness import InputExactness
from keras_preempt.state.shuffles import Shuffles

logger = logging.getLogger("keras_preempt")

_ITS_OWN_RANDOM_NUMBERS = (
    "Draw with keras.random and a keras.random.SeedGenerator that the model or its layer holds"
)

_UNSEEN = (
    "the training step, which cannot be looked at before it runs, draws random numbers from keras.random alone, or "
    "from generators that are attributes of the model, and keeps what it remembers in variables"
)

_BOTH_UNSEEN = (
    "the training step and the validation step, which cannot be looked at before they run, draw random numbers from "
    "keras.random alone, or from generators that are attributes of the model, and keep what they remember in variables"
)

_REMEMBERED = (
    "the training step and the validation step, which cannot be looked at before they run, keep what they remember in "
    "variables, or in generators and buffers that the model holds"
)

_VALIDATION_UNSEEN = (
    "the validation step, whose code refers to random numbers or Python functions and which is looked at as soon as it "
    "has run, draws from keras.random alone, or from generators that are attributes of the model"
)


@dataclass(frozen=True)
class Doubt:
    """Something of a run that a restart does not repeat, or may not.

    Attributes:
        what: What it is, as it follows "exact except:".
        cure: What to do about it: a sentence without its full stop.
        certain: Whether it is known to be there, and does not depend on what the user's code does unseen.
    """

    what: str
    cure: str
    certain: bool = True

    def __str__(self) -> str:
        return f"{self.what}. {self.cure}"


@dataclass(frozen=True)
class Promise:
    """How exactly a run continues.

    Attributes:
        doubts: What speaks against it.
        condition: What it depends on that cannot be seen, as the end of "exact if ..."; empty for nothing.
        how: How the training data continues, as the end of "the input continues ...".
    """

    doubts: tuple[Doubt, ...]
    condition: str
    how: str

    def __str__(self) -> str:
        if not self.doubts:
            exactly = f"exact if {self.condition}" if self.condition else "bit-identical"
            return f"After a preemption: {exactly}; the input continues {self.how}."
        certain = any(doubt.certain for doubt in self.doubts)
        begin = "NOT exact after a preemption" if certain else "After a preemption"
        listed = "; ".join(str(doubt) for doubt in sorted(self.doubts, key=lambda doubt: not doubt.certain))
        condition = f" (and if {self.condition})" if self.condition else ""
        return f"{begin}: exact except{condition}: {listed}."


@dataclass(frozen=True)
class StepFacts:
    """What is known of the steps of a run.

    Attributes:
        operations: The random operations of the training step, and those that run Python code; None if it cannot be
            looked at, as in an eager fit.
        held: Whether a checkpoint holds the variable that a resource names.
        unordered_sums: What to do about a device that may add numbers in another order each time; empty for none.
        condition: What else they depend on that cannot be seen, as the end of "exact if ..."; empty for nothing.
        unkept: What the model holds that they may change and no checkpoint has, in words.
        draws_are_kept: Whether a checkpoint has the states of all global generators that they may draw from.
        validation_may_draw: Whether there will be validations by a step that refers to other random numbers.
    """

    operations: Iterable[RandomOperation] | None = ()
    held: Callable[[Any], bool] = lambda resource: False
    unordered_sums: str = ""
    condition: str = ""
    unkept: Sequence[str] = ()
    draws_are_kept: bool = False
    validation_may_draw: bool = False


def promise(
    data: InputExactness,
    shuffles: Shuffles | None = None,
    step: StepFacts = StepFacts(),
    callbacks: Sequence[str] = (),
    set_by_callbacks: Sequence[str] = (),
) -> Promise:
    """Returns how exactly a run continues.

    `callbacks` are those whose state is not kept, with what of it; `set_by_callbacks` is what they set of other objects
    while training goes on.
    """
    doubts = [Doubt(what, cure) for what, cure in data.doubts]
    if shuffles is not None and (of_shuffles := _doubt_of(shuffles)):
        doubts.append(
            Doubt(
                f"training and validation share a shuffle{of_shuffles}",
                "Split the data before it is shuffled, or pass shuffle(..., reshuffle_each_iteration=False)",
            )
        )
    doubts += doubts_of_step(step.operations or (), step.held, "training step")
    if callbacks:
        doubts.append(
            Doubt(
                f"the state of these callbacks which is not kept over a restart: {', '.join(callbacks)}",
                cure(callbacks),
                certain=False,
            )
        )
    if set_by_callbacks:
        lost = "A step keeps the values of its first run, and after a restart those of its first run there"
        if step.draws_are_kept:  # It runs as Python code, each time anew.
            lost = "A restart begins with what the script sets"
        doubts.append(
            Doubt(
                f"what callbacks set of other objects, if the training step reads it: {', '.join(set_by_callbacks)}. "
                f"{lost}",
                "Let the step read a keras.Variable that the model holds, and assign to that",
                certain=False,
            )
        )
    if step.unkept:
        doubts.append(
            Doubt(
                f"what the training step may change and no checkpoint holds: {', '.join(step.unkept)}",
                "Use an optimizer of Keras, and clear the gradients in each step",
                certain=False,
            )
        )
    if step.unordered_sums:
        what = "the order in which a GPU adds numbers, which may be another one in each run"
        doubts.append(Doubt(what, step.unordered_sums, certain=False))
    if step.operations is None and step.draws_are_kept:
        unseen = _REMEMBERED
    elif step.operations is None:
        unseen = _BOTH_UNSEEN if step.validation_may_draw else _UNSEEN
    else:
        unseen = _VALIDATION_UNSEEN if step.validation_may_draw else ""
    conditions = [data.condition, unseen, step.condition]
    return Promise(tuple(doubts), " and ".join(filter(None, conditions)), data.how)


def _doubt_of(shuffles: Shuffles) -> str:
    if shuffles.shared_while_drawn:
        return (
            " that is repeated, or is gone through several times in an epoch, so that each changes the order of the "
            "other at a moment that is left to chance"
        )
    unread = shuffles.shared and not shuffles.readable
    return ", and how far it has come cannot be read" if unread else ""


def doubts_of_validation_step(
    operations: Iterable[RandomOperation],
    of_training: Iterable[RandomOperation],
    held: Callable[[Any], bool],
) -> list[Doubt]:
    """Returns what a restart does not repeat of the validation step, or may not, but for what training does as well."""
    told = {(each.kind, each.where) for each in of_training}
    new = [each for each in operations if (each.kind, each.where) not in told]
    return doubts_of_step(new, held, "validation step")


def doubts_of_step(
    operations: Iterable[RandomOperation], held: Callable[[Any], bool], step: str
) -> list[Doubt]:
    """Returns what a restart does not repeat of a step, or may not, by its random operations and Python code."""
    draws: set[str] = set()
    python: set[str] = set()
    generators: set[str] = set()
    for operation in operations:
        if "PyFunc" in operation.kind:
            python.add(operation.where)
        elif operation.resource is None:
            draws.add(f"{operation.kind} in {operation.where}")
        elif not held(operation.resource):
            generators.add(operation.where)
    doubts = []
    if draws:
        doubts.append(
            Doubt(
                f"the {step} draws random numbers whose sequence starts over in each process (such as "
                f"tf.random.*: {', '.join(sorted(draws))})",
                _ITS_OWN_RANDOM_NUMBERS,
            )
        )
    if generators:
        doubts.append(
            Doubt(
                f"the {step} uses a random generator that no checkpoint holds "
                f"(in {', '.join(sorted(generators))})",
                "Make the tf.random.Generator an attribute of the model. Or: "
                f"{_ITS_OWN_RANDOM_NUMBERS[0].lower()}{_ITS_OWN_RANDOM_NUMBERS[1:]}",
            )
        )
    if python:
        doubts.append(
            Doubt(
                f"the {step} runs Python code ({', '.join(sorted(python))}), if that draws random numbers or "
                "remembers anything",
                "Let it depend on its arguments alone",
                certain=False,
            )
        )
    return doubts


def tell(doubts: Iterable[Doubt], otherwise: str = "") -> None:
    """Logs what has turned out after the promise was given, and, after a space, what may follow from it."""
    for doubt in doubts:
        exactly = "NOT exact" if doubt.certain else "Perhaps not exact"
        logger.warning("%s after a preemption: %s.%s", exactly, doubt, otherwise)
