"""The messages by which the workers of a cluster agree on a boundary to stop at, or say that one of them has failed.

Frozen values and their JSON form. Nothing here decides anything: the decisions are in `alignment.py` and `member.py`.
A message travels as one value of an insert-once key, so it is complete or absent, never half there. What
cannot be decoded is therefore no accident of the network: another program talks (a different version, or
another job on the same keys). It is refused, with both sides named.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

PHASES = ("train", "validation", "epoch", "end")


class ProtocolError(RuntimeError):
    """The members of a cluster do not follow one protocol, or do not run one program."""


class Kind(str, Enum):
    """Why a round was called."""

    PREEMPTED = "preempted"
    """The caller is under notice."""
    PERIODIC = "periodic"
    """A save is due; training goes on after it."""
    DEADLINE = "deadline"
    """An earlier notice left time to train on, and that time is used up."""
    FINISHED = "finished"
    """The caller stands at the last boundary."""


@dataclass(frozen=True)
class Position:
    """Where in the program a boundary is.

    Attributes:
        epoch: Zero-based epoch.
        phase: Which kind of boundary, one of `PHASES`: before a train execution, in validation, at an epoch's
            begin, at the end of training.
        batch: Zero-based batch that comes next in this phase.
        step: Train steps finished since the model was made, where known.
    """

    epoch: int
    phase: str
    batch: int
    step: int | None = None

    def agrees_with(self, other: Position) -> bool:
        """Whether both describe the same place; a step that one side does not know is not compared."""
        same_place = (self.epoch, self.phase, self.batch) == (other.epoch, other.phase, other.batch)
        return same_place and (None in (self.step, other.step) or self.step == other.step)

    def __str__(self) -> str:
        step = "" if self.step is None else f", step {self.step}"
        return f"epoch {self.epoch}, {self.phase} batch {self.batch}{step}"


@dataclass(frozen=True)
class Call:
    """The value of `call`: the reason for a round, from the member that was first with one.

    Attributes:
        member: Index of the caller.
        kind: Why it calls.
        reason: For people: the notice's text.
        goes_on: There is time: save, then train on. The caller alone judges that, by its own
            clock, so that members cannot come to different answers.
    """

    member: int
    kind: Kind
    reason: str = ""
    goes_on: bool = False

    def encode(self) -> str:
        """This message as compact JSON."""
        return _encode(self)

    @classmethod
    def decode(cls, text: str) -> Call:
        """The message that `encode` wrote. Raises `ProtocolError` for anything else."""
        read = _Reader("call", text, ("member", "kind", "reason", "goes_on"))
        return cls(read.integer("member"), read.kind(), read.text("reason"), read.truth("goes_on"))


@dataclass(frozen=True)
class At:
    """The value of `at/<member>`: the next boundary at which this member can stop.

    Attributes:
        member: Index of the member that answers.
        boundary: That boundary's number, counted from 1 since fit began.
        position: What the member takes that boundary to be, if its main thread is held there, else None.
        doomed: Whether the member is under notice itself.
    """

    member: int
    boundary: int
    position: Position | None
    doomed: bool

    def encode(self) -> str:
        """This message as compact JSON."""
        return _encode(self)

    @classmethod
    def decode(cls, text: str) -> At:
        """The message that `encode` wrote. Raises `ProtocolError` for anything else."""
        read = _Reader("at", text, ("member", "boundary", "position", "doomed"))
        return cls(read.integer("member"), read.integer("boundary", 1), read.position(), read.truth("doomed"))


@dataclass(frozen=True)
class Plan:
    """The value of `plan`: what this round comes to, the same for everyone.

    Attributes:
        target: The boundary at which all act, counted from 1; 0 in an aborted plan.
        kind: The kind of the call that it answers.
        writers: Members that write the mirrored state, ascending.
        doomed: Members under notice, ascending; they write only what they alone hold.
        abort: Why nothing comes of this round, else None.
        goes_on: Training continues after the save, into the next round.
    """

    target: int
    kind: Kind
    writers: tuple[int, ...]
    doomed: tuple[int, ...]
    abort: str | None = None
    goes_on: bool = False

    def encode(self) -> str:
        """This message as compact JSON."""
        return _encode(self)

    @classmethod
    def decode(cls, text: str) -> Plan:
        """The message that `encode` wrote. Raises `ProtocolError` for anything else."""
        names = ("target", "kind", "writers", "doomed", "abort", "goes_on")
        read = _Reader("plan", text, names)
        plan = cls(
            read.integer("target"),
            read.kind(),
            read.members("writers"),
            read.members("doomed"),
            read.optional_text("abort"),
            read.truth("goes_on"),
        )
        if plan.abort is None and not (plan.target and plan.writers):
            raise read.refuse("a target of at least 1 and writers in a plan without 'abort'", text)
        return plan


_FAILED = "keras_preempt: a worker failed: "


@dataclass(frozen=True)
class Failure:
    """What a worker tells, under whatever key the others wait for, when it takes part no more.

    Attributes:
        member: Index of the worker.
        type: The name of the exception's class, with its module unless it is a builtin or TensorFlow's; "" where the
            worker has left without one.
        code: TensorFlow's error code; 0 if it is no error of TensorFlow's.
        text: The exception's text, or why the worker has left.
    """

    member: int
    type: str
    code: int
    text: str

    def encode(self) -> str:
        """The message from which `decode` reads it; also found within a longer text."""
        return _FAILED + json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Failure | None:
        """Finds an encoded failure in a longer text; None if there is none."""
        _, mark, rest = text.partition(_FAILED)
        if not mark:
            return None
        try:
            found, _ = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            return None
        fields = {"member": int, "type": str, "code": int, "text": str}
        if not isinstance(found, dict) or found.keys() != fields.keys():
            return None
        if any(type(found[name]) is not kind for name, kind in fields.items()):
            return None
        return cls(**found)

    def __str__(self) -> str:
        return f"{self.type}: {self.text}" if self.type else self.text


def _encode(message: Call | At | Plan) -> str:
    return json.dumps(asdict(message), separators=(",", ":"), allow_nan=False)


class _Reader:
    """Typed access to one received JSON object; every refusal names what was expected and received."""

    def __init__(self, message: str, text: str, names: tuple[str, ...]) -> None:
        self._message = message
        self._values: dict[str, Any] = self._object(_parse(text), names, text)

    def refuse(self, expected: str, received: object) -> ProtocolError:
        shown = received if isinstance(received, str) else repr(received)
        return ProtocolError(
            f"Expected {expected} in the message '{self._message}' of a round. Received: {shown[:200]!r}. "
            "Check that all workers run the same version of keras_preempt, and only this job on this cluster."
        )

    def _object(self, value: object, names: Iterable[str], received: object) -> dict[str, Any]:
        expected = sorted(names)
        if not isinstance(value, dict) or sorted(value) != expected:
            raise self.refuse(f"a JSON object with the names {', '.join(expected)}", received)
        return value

    def _whole(self, value: object, name: str, minimum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.refuse(f"an integer of at least {minimum} as '{name}'", value)
        return value

    def integer(self, name: str, minimum: int = 0) -> int:
        return self._whole(self._values[name], name, minimum)

    def members(self, name: str) -> tuple[int, ...]:
        value = self._values[name]
        if not isinstance(value, list):
            raise self.refuse(f"a list of members as '{name}'", value)
        found = tuple(self._whole(entry, name, 0) for entry in value)
        if any(first >= second for first, second in itertools.pairwise(found)):
            raise self.refuse(f"ascending members, each once, as '{name}'", value)
        return found

    def text(self, name: str) -> str:
        value = self._values[name]
        if not isinstance(value, str):
            raise self.refuse(f"a string as '{name}'", value)
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self._values[name] is None else self.text(name)

    def truth(self, name: str) -> bool:
        value = self._values[name]
        if not isinstance(value, bool):
            raise self.refuse(f"true or false as '{name}'", value)
        return value

    def kind(self) -> Kind:
        value = self.text("kind")
        if value not in {kind.value for kind in Kind}:
            raise self.refuse(f"one of {', '.join(kind.value for kind in Kind)} as 'kind'", value)
        return Kind(value)

    def position(self) -> Position | None:
        value = self._values["position"]
        if value is None:
            return None
        fields = self._object(value, ("epoch", "phase", "batch", "step"), value)
        phase = fields["phase"]
        if phase not in PHASES:
            raise self.refuse(f"one of {', '.join(PHASES)} as 'phase'", phase)
        step = None if fields["step"] is None else self._whole(fields["step"], "step", 0)
        return Position(
            self._whole(fields["epoch"], "epoch", 0), phase, self._whole(fields["batch"], "batch", 0), step
        )


def _parse(text: str) -> object:
    """`text` as JSON, or None where it is none; NaN and infinities pass here and are refused as values."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value
