"""The notices that stand against a process, and what follows from them: when to be gone, in monotonic seconds."""

from __future__ import annotations

from keras_preempt.notices import Notice


class Standing:
    """Notices that were given and not withdrawn.

    Args:
        grace: Seconds between a notice and the end of this process, if the user says so; 0 to be gone at once
            even where a notice gives more time. None: a notice that brings a deadline gives time until then,
            and any other none.
    """

    def __init__(self, grace: float | None = None) -> None:
        self._grace = grace
        self._notices: dict[tuple[str, str], Notice] = {}

    def __bool__(self) -> bool:
        return bool(self._notices)

    def add(self, notice: Notice) -> bool:
        """Takes a notice; one with the identity of an earlier one replaces it.

        Returns:
            Whether it changes anything: it is the first, or its deadline is earlier than all others.
        """
        before = self.gone_by if self._notices else None
        key = (notice.source, notice.id)
        earlier = self._notices.get(key)
        if earlier is not None and notice.deadline is None:
            notice = earlier  # Said again, with nothing new; its time began when it was first said.
        self._notices[key] = notice
        return before is None or self.gone_by < before

    def withdraw(self, notice: Notice) -> bool:
        """Removes the notice of that identity; returns whether it stood."""
        return self._notices.pop((notice.source, notice.id), None) is not None

    @property
    def first(self) -> Notice:
        """The notice by which to be gone first.

        Raises:
            ValueError: No notice stands.
        """
        return min(self._notices.values(), key=self._gone_by)

    @property
    def gone_by(self) -> float:
        """When the last save must be over, in monotonic seconds, by the earliest deadline that stands.

        The moment of the notice where there is no time to train on: that is in the past.

        Raises:
            ValueError: No notice stands.
        """
        return self._gone_by(self.first)

    @property
    def ends_at(self) -> float | None:
        """When the machine goes at the earliest, in monotonic seconds; None if nobody has said."""
        known = [notice.ends_at for notice in self._notices.values() if notice.ends_at is not None]
        if self._grace:
            known += [notice.heard_at + self._grace for notice in self._notices.values()]
        return min(known, default=None)

    def _gone_by(self, notice: Notice) -> float:
        if self._grace is None:
            return notice.heard_at if notice.ends_at is None else notice.ends_at
        by = notice.heard_at + self._grace
        return by if notice.ends_at is None else min(by, notice.ends_at)
