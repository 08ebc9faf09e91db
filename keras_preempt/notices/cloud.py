"""What the package knows about one cloud: how to recognise it, where and what to ask it, and what follows there.

Each cloud has a module (gce.py, aws.py, azure.py) that holds its sources of notices and one `Cloud`;
`platform.CLOUDS` lists them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from keras_preempt.notices.metadata_client import LINK_LOCAL, Address, Answer, parse_address
from keras_preempt.notices.notice import Notice
from keras_preempt.process.exit_codes import EXIT_RESTART

Accelerator = Literal["gpu", "tpu", "none"]

OnNotice = Callable[[Notice], None]


class Source(Protocol):
    """A source of notices."""

    def start(self) -> None:
        """Begins to listen."""
        ...

    def stop(self) -> None:
        """Ends; no notice is delivered after this. Can be called twice."""
        ...


class Grace(NamedTuple):
    """The time that a save can count on: the `seconds` from a notice to the end, and the `source` of that number."""

    seconds: float
    source: str


UNKNOWN_GRACE = Grace(30.0, "what most platforms give; nothing is known of this one")


@dataclass(frozen=True)
class Row:
    """What follows from a kind of machine, a scheduler or a role.

    Attributes:
        name: What `KERAS_PREEMPT_PLATFORM` calls it.
        exit_code: Exit status after a preemption.
        maintenance_lead: Seconds from a notice of maintenance to the end of the machine, which the platform
            promises and the notice does not say; 0 if it promises nothing.
        waits_for_workers: Whether to exit only once the workers are gone.
        accelerator: What machines of this kind compute on; None if the name does not say.
        variables: What a scheduler sets in the environment of the processes that it starts.
        grace: What a process can count on after any other notice.
    """

    name: str
    exit_code: int = EXIT_RESTART
    maintenance_lead: float = 0.0
    waits_for_workers: bool = False
    accelerator: Accelerator | None = None
    variables: tuple[str, ...] = ()
    grace: Grace = UNKNOWN_GRACE


@dataclass(frozen=True)
class Question:
    """What to ask a metadata server to find out whose it is.

    Attributes:
        path: What to ask for.
        recognises: Whether only this cloud answers like that.
        headers: The request headers.
        method: The HTTP method.
    """

    path: str
    recognises: Callable[[Answer], bool]
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "GET"


@dataclass(frozen=True)
class Cloud:
    """One cloud.

    Attributes:
        name: Its name; also that of its sources in `Platform.sources`.
        variables: Environment variables that say where its metadata server is; the first one set counts.
        firmware: Finds the cloud's sign in the firmware, which it reads field by field (those of
            /sys/class/dmi/id); None if it is another cloud's.
        question: How to recognise its metadata server.
        sources: Makes the sources of notices, given what to call with a notice, what to call with one that is
            withdrawn, and the machine's `Row.maintenance_lead`.
        machines: The kinds of its machines. With several of them, each names its accelerator.
    """

    name: str
    variables: tuple[str, ...]
    firmware: Callable[[Callable[[str], str]], str | None]
    question: Question
    sources: Callable[[OnNotice, OnNotice, float], Iterable[Source]]
    machines: tuple[Row, ...]

    def address(self, variables: Mapping[str, str] = os.environ) -> Address:
        """Where its metadata server is: at the link-local address unless a variable says otherwise.

        Raises:
            ValueError: A variable holds no address.
        """
        for name in self.variables:
            if variables.get(name):
                return parse_address(variables[name], name)
        return LINK_LOCAL

    def machine(self, accelerator: Accelerator) -> Row:
        """The kind of machine that has this accelerator."""
        return next(row for row in self.machines if row.accelerator in (None, accelerator))
