"""The messages by which the workers of a cluster agree on a boundary to stop at, or say that one of them has failed.

The decisions are in `alignment.py` and `member.py`. A message is one value of an insert-once key, so it is complete or
absent. If it cannot be decoded, another program has written it (a different version, or another job on the same keys),
and the error says what was expected and what was received.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum

from keras_preempt.process.json_fields import Fields, loads

_MOST_MEMBERS = 1 << 20

PHASES = ("train", "validation", "epoch", "end")


class ProtocolError(RuntimeError):
    """The members of a cluster do not follow one protocol, or do not run one program."""


class Kind(str, Enum):
    """Why a round was called."""

    PREEMPTED = "preempted"  # The caller is under notice.
    PERIODIC = "periodic"  # A save is due; training goes on after it.
    REQUESTED = "requested"  # Somebody has asked for a save; training goes on after it.
    INTERRUPTED = "interrupted"  # The caller's user has interrupted it: save, leave, and do not start again.
    DEADLINE = "deadline"  # An earlier notice left time to train on, and that time is used up.
    FINISHED = "finished"  # The caller stands at the last boundary.


@dataclass(frozen=True)
class Position:
    """Where in the program a boundary is."""

    epoch: int  # From 0.
    phase: str
    """One of `PHASES`: before a train execution, in validation, as an epoch begins, after training."""

    batch: int  # The one that comes next in this phase, from 0.
    step: int | None = None  # Train steps finished since the model was made, where known.

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
    """The value of `call`: the reason for a round, from the member that was first with one."""

    member: int  # Index of the caller.
    kind: Kind
    reason: str = ""  # For people: the notice's text.
    goes_on: bool = False
    """There is time to save and then train on. Only the caller judges that, by its own clock, so that members cannot
    come to different answers."""

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
    """The value of `at/<member>`: the next boundary at which this member can stop."""

    member: int
    boundary: int  # Its number, counted from 1 since fit began.
    position: Position | None  # What it is to this member, if its main thread is held there.
    doomed: bool  # Whether the member is under notice itself.

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
    """The value of `plan`: the result of a round, the same for everyone."""

    target: int  # The boundary at which all act, counted from 1; 0 in an aborted plan.
    kind: Kind  # That of the call that it answers.
    writers: tuple[int, ...]  # Members that write the mirrored state, ascending.
    doomed: tuple[int, ...]  # Members under notice, ascending; they write only what they alone hold.
    abort: str | None = None  # Why the round was aborted.
    goes_on: bool = False  # Training continues after the save, into the next round.

    def encode(self) -> str:
        """See `_Message.encode`. Members are told as ranges, since every member gets the plan.

        ``[0, 6, 8, 8]`` stands for members 0 to 6 and member 8.
        """
        told = {name: _ranges(getattr(self, name)) for name in ("writers", "doomed")}
        return json.dumps({**asdict(self), **told}, separators=(",", ":"), allow_nan=False)

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
    """Sent by a worker that failed or left, on any key."""

    member: int
    type: str
    """The exception's class, with its module unless it is a builtin or the backend's; "" without an exception."""
    code: int  # The backend's code of the error; 0 if it is not the backend's.
    text: str  # The exception's text, or why the worker has left.

    def encode(self) -> str:
        """The message that `decode` reads, also within a longer text."""
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
    """Such as `keras_preempt/1/2/at/1` in round 2 of the first fit; `rest` is "call", "plan", or "at" and an index."""
    return "/".join(("keras_preempt", str(fit), str(round), *map(str, rest)))


def _fields(message: str, text: str) -> Fields:
    """The fields of a received message; raises ProtocolError for what they refuse."""

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


def _ranges(members: Sequence[int]) -> list[int]:
    """Returns the first and the last member of each range of ascending members, one after the other."""
    ends: list[int] = []
    for member in members:
        if ends and ends[-1] + 1 == member:
            ends[-1] = member
        else:
            ends += member, member
    return ends


def _members(fields: Fields, key: str) -> tuple[int, ...]:
    ends = fields.integers(key, maximum=None)
    ranges = list(zip(ends[::2], ends[1::2], strict=False))
    apart = all(last + 1 < first for (_, last), (first, _) in itertools.pairwise(ranges))
    if len(ends) % 2 or not apart or any(first > last for first, last in ranges):
        raise fields.refuse(f"ascending ranges of members, apart from each other, as '{key}'", ends)
    if sum(last + 1 - first for first, last in ranges) > _MOST_MEMBERS:
        raise fields.refuse(f"up to {_MOST_MEMBERS} members as '{key}'", ends)
    return tuple(member for first, last in ranges for member in range(first, last + 1))
