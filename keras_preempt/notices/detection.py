"""Finds out where this process runs, beside start-up: a wrong or silent answer must not hold training up.

What the machine says about itself comes first, and takes no time: variables, firmware, device files. A metadata server
is asked only where the firmware names no cloud (a container may hide it), or where a variable says where the server
is; in a thread, for one second at most. It is believed by what only a metadata server says, since many a network
answers everything.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from keras_preempt.notices.cloud import Accelerator, Cloud
from keras_preempt.notices.metadata_client import Address, Answer, MetadataClient, MetadataError
from keras_preempt.notices.platform import CLOUDS, SCHEDULERS, Platform, compose, parse_name
from keras_preempt.notices.stopping import Stopped, Stopping
from keras_preempt.process import environment

logger = logging.getLogger("keras_preempt")

SERVICE_ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount"
"""A folder that Kubernetes puts into containers, also where the variables were cleared."""

TPU_VARIABLES = ("TPU_NAME", "TPU_WORKER_ID", "TPU_ACCELERATOR_TYPE")

_DEVICES: tuple[tuple[str, Accelerator], ...] = (("accel[0-9]*", "tpu"), ("nvidia[0-9]*", "gpu"))
_FIRMWARE = "sys/class/dmi/id"

LIMIT = 1.0
"""Seconds that metadata servers get for an answer, all together."""


Clue = tuple[str, str]
"""What the machine says about itself: the name of a scheduler or cloud, and the sign of it in words, for the log.

Somebody else may set or hide any of it, so looking never raises.
"""


def scheduler_clue(variables: Mapping[str, str], root: Path = Path("/")) -> Clue | None:
    """The scheduler that started this process."""
    for row in SCHEDULERS.values():
        for variable in row.variables:
            if variables.get(variable):
                return row.name, f"{variable} is set"
    if (root / SERVICE_ACCOUNT).is_dir():
        return "kubernetes", f"/{SERVICE_ACCOUNT} is there"
    return None


def cloud_clue(root: Path = Path("/")) -> Clue | None:
    """The cloud, as the firmware of its machines names it."""

    def field(name: str) -> str:
        try:
            return (root / _FIRMWARE / name).read_text(errors="replace").strip()
        except OSError:
            return ""

    for cloud in CLOUDS.values():
        sign = cloud.firmware(field)
        if sign is not None:
            return cloud.name, f"the firmware says {sign}"
    return None


def find_accelerator(variables: Mapping[str, str], root: Path = Path("/")) -> tuple[Accelerator, str | None]:
    """What the machine computes on, and by which sign; "none" without one.

    Device files rather than TensorFlow's list: it is the machine that is stopped for maintenance, whether or
    not this process uses all of it, and looking must not start TensorFlow.
    """
    for variable in TPU_VARIABLES:
        if variables.get(variable):
            return "tpu", f"{variable} is set"
    for pattern, kind in _DEVICES:
        device = next(iter(sorted((root / "dev").glob(pattern))), None)
        if device is not None:
            return kind, f"/dev/{device.name} is there"
    return "none", None


class Detection:
    """Finds the platform: `start` it early, take the `result` when it is needed.

    Args:
        accelerator: What the machine computes on, if the caller knows; None to look for device files.
        variables: The environment.
        root: Where the file system begins; /sys, /dev and /var are looked at.
        limit: How long metadata servers may take to answer, all together, in seconds.

    Raises:
        ValueError: ``KERAS_PREEMPT_PLATFORM`` names no platform, or a variable that is to say where a metadata
            server is does not.

    Example:
        >>> detection = Detection().start()
        >>> platform = detection.result()
    """

    def __init__(
        self,
        accelerator: Accelerator | None = None,
        *,
        variables: Mapping[str, str] = os.environ,
        root: Path = Path("/"),
        limit: float = LIMIT,
    ) -> None:
        self._limit = limit
        self._stopping: Stopping | None = None
        self._thread: threading.Thread | None = None
        self._answered: tuple[str, str] | None = None
        self._platform: Platform | None = None
        found, sign = find_accelerator(variables, root)
        self._accelerator: Accelerator = found if accelerator is None else accelerator
        if variables.get(environment.PLATFORM):
            self._platform = parse_name(variables[environment.PLATFORM], self._accelerator)
            return
        scheduler, cloud = scheduler_clue(variables, root), cloud_clue(root)
        signs = [clue[1] for clue in (scheduler, cloud) if clue]
        self._signs = (*signs, sign) if sign and accelerator is None else tuple(signs)
        self._scheduler = scheduler[0] if scheduler else None
        self._cloud = cloud[0] if cloud else None
        self._servers = _servers(variables, ask_all=cloud is None)
        if not self._servers:
            self._platform = self._compose(self._cloud)

    def start(self) -> Detection:
        """Begins to ask, if there is anything to ask. Returns itself."""
        if self._platform is None and self._thread is None:
            self._stopping = Stopping()
            self._thread = threading.Thread(
                target=self._ask, args=(self._stopping,), name="keras_preempt-platform", daemon=True
            )
            self._thread.start()
        return self

    def result(self, timeout: float = LIMIT) -> Platform:
        """The platform, as far as it is known by then. The first call decides, and ends the asking.

        Args:
            timeout: How long to wait at most, in seconds. Without an answer, what the machine says about itself
                stands.
        """
        if self._platform is None:
            self.start()
            assert self._thread is not None
            self._thread.join(timeout)
            self.stop()
            if self._answered is None:
                self._platform = self._compose(self._cloud, "no metadata server answered")
            else:
                self._platform = self._compose(*self._answered)
        return self._platform

    def stop(self) -> None:
        """Ends the asking. Can be called twice, and without a start."""
        if self._stopping is not None and self._thread is not None:
            self._stopping.set()
            self._thread.join(timeout=min(self._limit, LIMIT))

    def _compose(self, cloud: str | None, *more: str) -> Platform:
        return compose(self._scheduler, cloud, self._accelerator, (*self._signs, *more))

    def _ask(self, stopping: Stopping) -> None:
        deadline = time.monotonic() + self._limit  # For all servers together.
        try:
            for cloud, address in self._servers:
                try:
                    answer = _ask_whose(cloud, address, stopping, deadline - time.monotonic())
                except MetadataError as error:
                    logger.debug("Not %s: %s", cloud.name, error)
                    continue
                if cloud.question.recognises(answer):
                    self._answered = cloud.name, f"the metadata server at {address} is that of {cloud.name}"
                    return
        except Stopped:
            return
        finally:
            stopping.close()


def _ask_whose(cloud: Cloud, address: Address, stopping: Stopping, timeout: float) -> Answer:
    question = cloud.question
    client = MetadataClient(address)
    return client.ask(
        question.path, stopping, headers=question.headers, timeout=timeout, method=question.method
    )


def _servers(variables: Mapping[str, str], *, ask_all: bool) -> list[tuple[Cloud, Address]]:
    """The servers that variables name; if there are none and `ask_all`, every cloud's own."""
    servers = [(cloud, cloud.address(variables)) for cloud in CLOUDS.values()]
    named = [server for server in servers if any(variables.get(name) for name in server[0].variables)]
    return named or (servers if ask_all else [])


_found: dict[tuple[str | None, ...], Platform] = {}

# What can change between two fits: a user may set a variable.
_VARIABLES = (environment.PLATFORM, *(name for cloud in CLOUDS.values() for name in cloud.variables))


class KnownOnce:
    """A `Detection` whose result this process remembers: a machine does not change, and asking takes a second.

    Raises:
        ValueError: See `Detection`.
    """

    def __init__(self) -> None:
        self._key = tuple(os.environ.get(name) for name in _VARIABLES)
        self._detection = None if self._key in _found else Detection().start()

    def result(self) -> Platform:
        """The platform; waits for at most a second, and only the first time."""
        if self._detection is not None:
            _found[self._key] = self._detection.result()
        return _found[self._key]

    def stop(self) -> None:
        """Ends the asking. Can be called twice."""
        if self._detection is not None:
            self._detection.stop()
