"""The messages by which the workers of a cluster agree on a boundary to stop at, or say that one of them has failed.

Frozen values and their JSON form. Nothing here decides anything: the decisions are in `alignment.py` and `member.py`.
A message travels as one value of an insert-once key, so it is complete or absent, never half there. What
cannot be decoded is therefore no accident of the network: another program talks (a different version, or
another job on the same keys). It is refused, with both sides named.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass
from enum import Enum

from keras_preempt.process.json_fields import Fields, loads

PHASES = ("train", "validation", "epoch", "end")


class ProtocolError(RuntimeError):
    """The members of a cluster do not follow one protocol, or do not run one program."""


class Kind(str, Enum):
    """Why a round was called."""

    PREEMPTED = "preempted"
    """The caller is under notice."""
    PERIODIC = "periodic"
    """A save is due; training goes on after it."""
    REQUESTED = "requested"
    """Somebody has asked for a save; training goes on after it."""
    INTERRUPTED = "interrupted"
    """The caller's user has interrupted it: save, leave, and do not start again."""
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
class _Message:
    """A message of a round; the `decode` of each kind raises `ProtocolError` for what `encode` has not written."""

    def encode(self) -> str:
        """This message as compact JSON."""
        return json.dumps(asdict(self), separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Call(_Message):
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

    @classmethod
    def decode(cls, text: str) -> Call:
        fields = _fields("call", text)
        call = cls(
            fields.integer("member", maximum=None),
            _kind(fields),
            fields.text("reason", longest=None),
            fields.boolean("goes_on"),
        )
        fields.end()
        return call


@dataclass(frozen=True)
class At(_Message):
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

    @classmethod
    def decode(cls, text: str) -> At:
        fields = _fields("at", text)
        position = None
        if not fields.null("position"):
            place = fields.inner("position")
            position = Position(
                place.integer("epoch", maximum=None),
                place.choice("phase", PHASES),
                place.integer("batch", maximum=None),
                None if place.null("step") else place.integer("step", maximum=None),
            )
            place.end()
        at = cls(
            fields.integer("member", maximum=None),
            fields.integer("boundary", minimum=1, maximum=None),
            position,
            fields.boolean("doomed"),
        )
        fields.end()
        return at


@dataclass(frozen=True)
class Plan(_Message):
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

    @classmethod
    def decode(cls, text: str) -> Plan:
        fields = _fields("plan", text)
        plan = cls(
            fields.integer("target", maximum=None),
            _kind(fields),
            _members(fields, "writers"),
            _members(fields, "doomed"),
            None if fields.null("abort") else fields.text("abort", longest=None),
            fields.boolean("goes_on"),
        )
        fields.end()
        if plan.abort is None and not (plan.target and plan.writers):
            raise fields.refuse("a target of at least 1 and writers in a plan without 'abort'", text)
        return plan


_FAILED = "keras_preempt: a worker failed: "


@dataclass(frozen=True)
class Failure:
    """Sent by a worker that failed or left, on any key.

    Attributes:
        member: Index of the worker.
        type: The name of the exception's class, with its module unless it is a builtin or the backend's; "" where the
            worker has left without one.
        code: The backend's code of the error; 0 if it is not the backend's.
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


def key(fit: int, round: int, *rest: str | int) -> str:
    """The key of a message, for example `keras_preempt/1/2/at/1` in round 2 of the first fit of each process.

    `rest` is "call", "plan", or "at" and the member's index.
    """
    return "/".join(("keras_preempt", str(fit), str(round), *map(str, rest)))


def _fields(message: str, text: str) -> Fields:
    """The fields of a received message; all that is refused is a `ProtocolError` that names expected and received."""

    def refuse(expected: str, received: object) -> ProtocolError:
        value = received if isinstance(received, str) else repr(received)
        return ProtocolError(
            f"Expected {expected} in the message '{message}' of a round. Received: {value[:200]!r}. "
            "Check that all workers run the same version of keras_preempt, and only this job on this cluster."
        )

    try:
        value = loads(text.encode())
    except ValueError:
        raise refuse("a JSON object", text) from None
    return Fields(value, refuse)


def _kind(fields: Fields) -> Kind:
    return Kind(fields.choice("kind", (kind.value for kind in Kind)))


def _members(fields: Fields, key: str) -> tuple[int, ...]:
    found = fields.integers(key, maximum=None)
    if any(first >= second for first, second in itertools.pairwise(found)):
        raise fields.refuse(f"ascending members, each once, as '{key}'", found)
    return found
