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
    """What follows from a kind of machine, a scheduler or a role; see `platform.Platform` for most of it."""

    name: str  # What `KERAS_PREEMPT_PLATFORM` calls it.
    exit_code: int = EXIT_RESTART
    maintenance_lead: float = 0.0
    waits_for_workers: bool = False
    accelerator: Accelerator | None = None  # None if the name does not say.
    variables: tuple[str, ...] = ()  # What a scheduler sets in the environment of its processes.
    grace: Grace = UNKNOWN_GRACE  # What a process can count on after any other notice.
    end_variable: str = ""  # Where a scheduler says when the allocation ends, in seconds since 1970.


class Probe(NamedTuple):
    """A request that tells a cloud's metadata server from those of others; only this cloud answers as `recognizes`."""

    path: str
    recognizes: Callable[[Answer], bool]
    headers: Mapping[str, str]
    method: str = "GET"


@dataclass(frozen=True)
class Cloud:
    """One cloud.

    `firmware` is given a function that reads a field of /sys/class/dmi/id, and returns the cloud's sign there, or None.
    `sources` makes the sources of notices, given what to call with a notice, what to call with one that is withdrawn,
    and the machine's `Row.maintenance_lead`.
    """

    name: str  # Also that of its sources in `Platform.sources`.
    variables: tuple[str, ...]  # They say where its metadata server is; the first one set counts.
    firmware: Callable[[Callable[[str], str]], str | None]
    probe: Probe
    sources: Callable[[OnNotice, OnNotice, float], Iterable[Source]]
    machines: tuple[Row, ...]  # With several of them, each names its accelerator.

    def address(self, variables: Mapping[str, str] = os.environ) -> Address:
        """Where its metadata server is; raises ValueError if a variable that says so holds no address."""
        for name in self.variables:
            if variables.get(name):
                return parse_address(variables[name], name)
        return LINK_LOCAL

    def machine(self, accelerator: Accelerator) -> Row:
        """The kind of machine that has this accelerator."""
        return next(row for row in self.machines if row.accelerator in (None, accelerator))
