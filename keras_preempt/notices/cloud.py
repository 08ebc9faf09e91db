"""What the package knows about one cloud: how to recognize it, where and what to ask it, and what follows there.

Each cloud has a module (gce.py, aws.py, azure.py) with its sources of notices and one `Cloud`; `platform.CLOUDS` lists
them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from keras_preempt.notices import OnNotice, Source
from keras_preempt.notices.metadata_client import LINK_LOCAL, Address, Answer, parse_address
from keras_preempt.process.exit_codes import EXIT_RESTART

Accelerator = Literal["gpu", "tpu", "none"]


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


class Probe(NamedTuple):
    """A request that tells a cloud's metadata server from those of others; only this cloud answers as `recognizes`."""

    path: str
    recognizes: Callable[[Answer], bool]
    headers: Mapping[str, str]
    method: str = "GET"


@dataclass(frozen=True)
class Cloud:
    """One cloud.

    Attributes:
        name: Its name; also that of its sources in `Platform.sources`.
        variables: Environment variables that say where its metadata server is; the first one set counts.
        firmware: Finds the cloud's sign in the firmware, which it reads field by field (those of
            /sys/class/dmi/id); None if it is another cloud's.
        probe: How to recognize its metadata server.
        sources: Makes the sources of notices, given what to call with a notice, what to call with one that is
            withdrawn, and the machine's `Row.maintenance_lead`.
        machines: The kinds of its machines. With several of them, each names its accelerator.
    """

    name: str
    variables: tuple[str, ...]
    firmware: Callable[[Callable[[str], str]], str | None]
    probe: Probe
    sources: Callable[[OnNotice, OnNotice, float], Iterable[Source]]
    machines: tuple[Row, ...]

    def address(self, variables: Mapping[str, str] = os.environ) -> Address:
        """Where its metadata server is; raises ValueError if a variable that says so holds no address."""
        for name in self.variables:
            if variables.get(name):
                return parse_address(variables[name], name)
        return LINK_LOCAL

    def machine(self, accelerator: Accelerator) -> Row:
        """The kind of machine that has this accelerator."""
        return next(row for row in self.machines if row.accelerator in (None, accelerator))
