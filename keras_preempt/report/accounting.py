"""Makes the account of a run from its events, with the steps that were lost. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from keras_preempt.report.account import Account, Incarnation, Notice, Save, Worker
from keras_preempt.report.fields import Event, seconds, whole, words
from keras_preempt.report.life import IDLE, UNACCOUNTED, End, Life, Timeline, began_at, live
from keras_preempt.report.tables import some

_NAMED = 3
"""Notices, or workers, that a line names one by one."""

_MOST_MEMBERS = 1 << 16  # an event may claim any number

_Logs = Mapping[tuple[int, int], Sequence[Event]]


def account(
    events: Sequence[Event],
    gaps: Sequence[str],
    now: float | None,
    is_alive: Callable[[object], bool | None] = lambda process: None,
) -> Account | None:
    """Accounts for a run.

    Args:
        events: From `keras_preempt.report.events.read`.
        gaps: What is known to be missing in them, in sentences.
        now: The present time in seconds since 1970, up to which a worker without an event of its end is taken to run.
            None: nothing runs any more.
        is_alive: Returns whether the process of that name is alive; None if it cannot know. See `this_process`.

    Returns:
        The account; None if there are no events of workers.
    """
    logs: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        member = whole(event, "member")
        if member is not None:
            logs[event["incarnation"], member].append(event)
    lives, assumed = _lives(logs, now, is_alive)
    if not lives:
        return None
    told: defaultdict[int, list[Event]] = defaultdict(list)
    for (number, _), log in logs.items():
        told[number] += log
    starts = [
        _incarnation(number, told[number], each) for number, each in sorted(_by_incarnation(lives).items())
    ]
    saves = _saves(events)
    incarnations = with_losses(starts, saves)
    found = [*gaps, *_missing(incarnations, logs)]
    if assumed:
        found.append(
            f"{_some(assumed)}: no end is recorded, and the process cannot be looked at from here: taken as running "
            "until now; if it is over, pass --over"
        )
    return Account(
        tuple(incarnations),
        tuple(_workers(incarnations, logs)),
        tuple(_notices(events)),
        tuple(saves),
        tuple(found),
    )


def _lives(
    logs: _Logs, now: float | None, is_alive: Callable[[object], bool | None]
) -> tuple[list[Life], list[int]]:
    """Returns all lives, and the workers that are only assumed to run."""
    last = max((number for number, _ in logs), default=0)
    first_starts: dict[int, float] = {}
    for (number, _), log in logs.items():
        first_starts[number] = min(began_at(log), first_starts.get(number, began_at(log)))
    lives: list[Life] = []
    assumed: list[int] = []
    by_member: defaultdict[int, list[int]] = defaultdict(list)
    for number, member in sorted(logs):
        by_member[member].append(number)
    for member, numbers in by_member.items():
        since: float | None = None
        for place, number in enumerate(numbers):
            log = logs[number, member]
            if place + 1 < len(numbers):
                replaced_at: float | None = began_at(logs[numbers[place + 1], member])
            else:
                replaced_at = min((at for other, at in first_starts.items() if other > number), default=None)
            process = next((event.get("process") for event in log if event["event"] == "start"), None)
            alive = is_alive(process) if number == last and now is not None else False
            life = live(
                number,
                member,
                log,
                since=since,
                replaced_at=replaced_at,
                running_until=None if alive is False else now,
            )
            if life is not None:
                lives.append(life)
                since = life.ended
                if life.end is End.RUNNING and alive is None:
                    assumed.append(member)
    return lives, assumed


def _by_incarnation(lives: Sequence[Life]) -> dict[int, list[Life]]:
    found: defaultdict[int, list[Life]] = defaultdict(list)
    for life in lives:
        found[life.incarnation].append(life)
    return found


def _incarnation(number: int, events: Sequence[Event], lives: Sequence[Life]) -> Incarnation:
    restore = next((event for event in events if event["event"] == "restore"), {})
    told = [members for event in events if event["event"] == "start" and (members := whole(event, "members"))]
    end = _decisive(lives, events)
    skipped = restore.get("skipped")
    return Incarnation(
        number=number,
        lives=tuple(lives),
        members=max([*told, len(lives)]),
        end=end,
        why=_why(end, events, lives),
        first_step=max((life.first_step for life in lives if life.first_step is not None), default=None),
        last_step=max((life.last_step for life in lives if life.last_step is not None), default=None),
        restored=words(restore, "checkpoint"),
        skipped=tuple(text[:500] for text in skipped if isinstance(text, str))
        if isinstance(skipped, list)
        else (),
    )


def _decisive(lives: Sequence[Life], events: Sequence[Event]) -> End:
    """How a start ended, whose workers may have ended differently.

    One may be killed when the others have saved. The others fail when one was killed; but if one has failed by
    itself, the launcher kills the others.
    """
    order = [End.RUNNING, End.PREEMPTED, End.INTERRUPTED, End.FINISHED, End.KILLED, End.SILENT, End.FAILED]
    if any(_is_own_error(event) for event in events):
        order.insert(order.index(End.KILLED), End.FAILED)
    ends = {life.end for life in lives}
    return next(end for end in order if end in ends)


def _is_own_error(event: Event) -> bool:
    return event["event"] == "error" and event.get("origin") == "this worker"  # As propagation.Origin has it.


def _why(end: End, events: Sequence[Event], lives: Sequence[Life]) -> str:
    of_it = [life for life in lives if life.end is end]
    if end in (End.PREEMPTED, End.INTERRUPTED):
        notices = [
            f"{notice.reason} to w{notice.member}" for notice in _notices(events) if not notice.withdrawn
        ]
        distinct = list(dict.fromkeys(notices))
        more = [f"{len(distinct) - _NAMED} more"] if len(distinct) > _NAMED else []
        return "; ".join([*distinct[:_NAMED], *more, of_it[0].why])
    if end is End.FAILED:
        own = [event for event in events if _is_own_error(event)]
        if own:
            return f"w{whole(own[0], 'member')}: {words(own[0], 'reason')}"
    shown = [f"w{life.member} {life.why}" for life in of_it[:_NAMED] if life.why]
    return "; ".join(shown)


def _workers(incarnations: Sequence[Incarnation], logs: _Logs) -> list[Worker]:
    timelines: dict[int, Timeline] = {}
    useful: defaultdict[int, float] = defaultdict(float)
    for start in incarnations:
        kept_until = start.kept_until
        for life in start.lives:
            timeline = timelines.setdefault(life.member, Timeline(life.began))
            timeline.until(life.began, IDLE)
            for span in life.spans:
                timeline.until(span.ended, span.what)
            saved_at = None if kept_until is None else _had_done(logs[start.number, life.member], kept_until)
            useful[life.member] += life.useful_seconds(kept_until, saved_at)
    return [Worker(member, line.spans, useful[member]) for member, line in sorted(timelines.items())]


def _had_done(log: Sequence[Event], step: int) -> float | None:
    """Returns the last time at which a worker is known to have done no more than `step` steps."""
    times = [
        seconds(event, "began_at") or float(event["time"])
        for event in log
        if (done := whole(event, "step")) is not None and done <= step
    ]
    return max(times, default=None)


def _notices(events: Sequence[Event]) -> list[Notice]:
    return [
        Notice(
            seconds(event, "received_at") or event["time"],
            event["incarnation"],
            event["member"],
            words(event, "source") or "?",
            words(event, "reason") or "?",
            seconds(event, "deadline"),
            event["event"] == "withdrawn",
        )
        for event in events
        if event["event"] in ("notice", "withdrawn") and whole(event, "member") is not None
    ]


def _saves(events: Sequence[Event]) -> list[Save]:
    began: dict[tuple[object, object, object], float] = {}
    found: dict[tuple[object, object], Save] = {}
    for event in events:
        attempt, step = words(event, "attempt"), whole(event, "step")
        if attempt is None or step is None:
            continue
        key = (event["incarnation"], attempt)
        worker = (*key, event.get("member") if whole(event, "member") is not None else None)
        if event["event"] == "save":
            took = seconds(event, "seconds") or 0.0
            began[worker] = seconds(event, "began_at") or event["time"] - took
        elif event["event"] == "commit":
            took = max(0.0, event["time"] - began.get(worker, event["time"]))
            missing = event.get("missing")
            save = Save(
                event["time"],
                event["incarnation"],
                step,
                took,
                tuple(member for member in missing if isinstance(member, int))
                if isinstance(missing, list)
                else (),
            )
            known = found.setdefault(key, save)
            if took > known.seconds:
                found[key] = replace(known, seconds=took)
    return list(found.values())


def _missing(incarnations: Sequence[Incarnation], logs: _Logs) -> list[str]:
    found = []
    for start in incarnations:
        if len(start.lives) < start.members:
            there = {life.member for life in start.lives}
            absent = [member for member in range(min(start.members, _MOST_MEMBERS)) if member not in there]
            found.append(
                f"start {start.number}: no events of {_some(absent)}, out of {start.members} workers"
            )
        for life in start.lives:
            if not any(event["event"] == "start" for event in logs[start.number, life.member]):
                found.append(
                    f"start {start.number}, w{life.member}: events are missing, so that it is not known when it began"
                )
            unknown = life.seconds(UNACCOUNTED)
            if unknown > 0:
                found.append(
                    f"start {start.number}, w{life.member}: events are missing, so {unknown:.1f} s cannot be told"
                )
    return found


def _some(members: Sequence[int]) -> str:
    return some([f"w{member}" for member in members], _NAMED)


def with_losses(starts: Sequence[Incarnation], saves: Sequence[Save]) -> list[Incarnation]:
    """Returns the starts with what each has lost.

    A start keeps the steps before the one at which a later start began, since no later start runs them again. The last
    start, if it ended early, keeps what is committed.

    Args:
        starts: In order.
        saves: The committed checkpoints.
    """
    found: list[Incarnation] = []
    limit: int | None = None
    pending = True  # No later start has trained.
    for start in reversed(starts):
        if start.first_step is None or start.last_step is None:
            found.append(start)
            continue
        if pending and start.end not in (End.FINISHED, End.RUNNING):
            committed = [save.step for save in saves if save.incarnation <= start.number]
            limit = max([start.first_step, *(step for step in committed if step <= start.last_step)])
        found.append(_with_loss(start, limit, pending))
        limit = start.first_step if limit is None else min(limit, start.first_step)
        pending = False
    return found[::-1]


def _with_loss(start: Incarnation, limit: int | None, pending: bool) -> Incarnation:
    assert start.first_step is not None
    assert start.last_step is not None
    if limit is None:
        return start
    exact = any(life.exact for life in start.lives)
    kept = max(0, min(limit, start.last_step) - start.first_step)
    lost = max(0, start.last_step - start.first_step - kept)
    if exact and not lost:
        return start
    will = "a start now would continue" if pending else "the next one continued"
    if exact:
        why = f"{will} from step {limit}, and this one had done {start.last_step}"
    else:
        why = f"{will} from step {limit}; what this one had done after step {start.last_step} is not recorded"
    at_most: int | None = lost
    if not exact:
        ahead = min((life.ahead for life in start.lives if life.ahead is not None), default=None)
        # Events can be lost with a killed process, but not the checkpoint that was restored.
        at_most = None if ahead is None else max(limit, start.last_step) + ahead - limit
    return replace(start, lost=lost, lost_exactly=exact, lost_at_most=at_most, lost_why=why, kept_until=limit)
