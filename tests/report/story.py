"""Runs that never were: events as workers tell them, with every length of time known."""

from __future__ import annotations

from typing import Any

NOW = 1_800_000_000.0

#: What the parts of one start of `Story.start` take, in seconds.
STARTING, READING, RESTORING, REPLAYING, COMPILING, HOLDING, SAVING, LEAVING, DYING = (
    *(5.0, 1.0, 0.5, 0.25, 2.0),
    *(0.125, 3.0, 0.75, 1.5),
)


class Story:
    """Tells the starts of a job one after the other; all workers do the same at the same time.

    Args:
        workers: How many there are.
        launcher: Whether somebody notes when each process has ended.
        ahead: As the schema has it.
    """

    def __init__(self, workers: int = 1, *, launcher: bool = True, ahead: int | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.at = NOW
        self.number = 0
        self.step = 0
        self._workers = workers
        self._launcher = launcher
        self._ahead = ahead

    def tell(self, kind: str, **fields: Any) -> None:
        for member in range(self._workers):
            event = {"event": kind, "time": self.at, "member": member, "incarnation": self.number, **fields}
            self.events.append(event)

    def begin(self, restored: int | None = None) -> Story:
        """A start, up to the point at which it trains; its first step takes `COMPILING`."""
        self.number += 1
        started = self.at
        read = 0.0 if restored is None else READING
        self.at += STARTING + read
        self.tell(
            "start",
            members=self._workers,
            started_at=started,
            began_at=started + STARTING / 2,
            read_at=None if restored is None else self.at - read,
            read_seconds=read,
        )
        self.step = restored or 0
        if restored is not None:
            self.at += RESTORING + REPLAYING
            self.tell(
                "restore",
                checkpoint=f"step-{restored:08d}/{self.number - 1:05d}-9999",
                seconds=RESTORING + REPLAYING,
                input_seconds=REPLAYING,
                skipped=[],
            )
        self.tell("ready", epoch=0, step=self.step, epochs=1, ahead=self._ahead)
        self.at += COMPILING
        self.step += 1
        self.tell("first_step", step=self.step, seconds=COMPILING)
        return self

    def train(self, steps: int, seconds: float) -> Story:
        """Nothing is told of that."""
        self.step += steps
        self.at += seconds
        return self

    def save(self, seconds: float = 0.5) -> Story:
        """A save in the background, for which training stands still for `seconds`."""
        began = self.at
        self.at += seconds
        times = {"began_at": began, "ready_at": self.at, "background": True}
        attempt = f"{self.number:05d}-{self.step:04d}"
        self.tell("save", attempt=attempt, step=self.step, seconds=0.0, **times)
        self.tell("commit", attempt=attempt, step=self.step, seconds=0.0, missing=[])
        return self

    def preempt(self, *, saved: bool = True) -> Story:
        self.tell("notice", source="signal", reason="SIGTERM", received_at=self.at, deadline=None)
        self._hold_and_save("preempted", saved=saved)
        self.tell("exit", code=75 if saved else 74, saved=self._name() if saved else None)
        return self._leave("preempted", 75 if saved else 74)

    def finish(self) -> Story:
        self._hold_and_save("finished", saved=True)
        self.tell("finish", step=self.step)
        return self._leave("training is over", 0)

    def fail(self, reason: str = "ValueError: no", origin: str = "this worker") -> Story:
        self.tell("error", reason=reason, origin=origin)
        return self._leave(reason, 1)

    def kill(self, *, step_known: bool = False) -> Story:
        known = {"step": self.step} if step_known else {}
        if self._launcher:
            self.tell("gone", code=-9, **known)
        return self

    def hang(self, seconds: float, member: int = 0) -> Story:
        """A worker makes no progress for so long, and the launcher ends all of them."""
        self.at += seconds
        self.tell("hang", phase="train", step=self.step, seconds=seconds)
        self.events = [each for each in self.events if each["event"] != "hang" or each["member"] == member]
        self.tell("gone", code=-9, step=self.step)
        return self

    def clock_behind(self, seconds: float, start: int) -> Story:
        """The clocks of the machines of a start that was told are behind."""
        for event in self.events:
            if event["incarnation"] == start:
                for name in ("time", "started_at", "began_at", "read_at", "ready_at", "received_at"):
                    if event.get(name) is not None:
                        event[name] -= seconds
        return self

    def pause(self, seconds: float) -> Story:
        """No process is there."""
        self.at += seconds
        return self

    def _hold_and_save(self, kind: str, *, saved: bool) -> None:
        self.at += HOLDING
        self.tell("hold", seconds=HOLDING - 0.0625, before=0.0625, goes_on=False, step=self.step)
        began = self.at
        self.at += SAVING
        if saved:
            attempt = f"{self.number:05d}-9999"
            self.tell("save", attempt=attempt, step=self.step, seconds=1.0, began_at=began, background=False)
            self.tell("commit", attempt=attempt, step=self.step, seconds=1.0, missing=[])
        else:
            self.tell("error", reason="not saved: disk full", step=self.step, background=False)

    def _leave(self, why: str, code: int) -> Story:
        self.at += LEAVING
        self.tell("end", reason=why, step=self.step)
        self.at += DYING
        if self._launcher:
            self.tell("gone", code=code)
        return self

    def _name(self) -> str:
        return f"step-{self.step:08d}/{self.number:05d}-9999"
