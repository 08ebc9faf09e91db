"""Finds out where this process runs, while it starts up: a wrong or silent answer must not hold training up.

What the machine says about itself comes first, and takes no time: variables, firmware, device files. A metadata server
is asked only where the firmware names no cloud (a container may hide it), or where a variable says where the server
is; in a thread, for one second at most. Only an answer that no other server would give counts, since some networks
answer every request.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from keras_preempt.notices.cloud import Accelerator
from keras_preempt.notices.metadata_client import MetadataClient, MetadataError, Stopped, Stopping
from keras_preempt.notices.platform import CLOUDS, SCHEDULERS, Platform, compose, parse_name
from keras_preempt.process import environment

logger = logging.getLogger("keras_preempt")

SERVICE_ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount"
"""A folder that Kubernetes puts into containers, also where the variables were cleared."""

TPU_VARIABLES = ("TPU_NAME", "TPU_WORKER_ID", "TPU_ACCELERATOR_TYPE")

_DEVICES: tuple[tuple[str, Accelerator], ...] = (("accel[0-9]*", "tpu"), ("nvidia[0-9]*", "gpu"))

LIMIT = 1.0  # Seconds that metadata servers get for an answer, all together.


# What the machine says about itself. Somebody else may set or hide any of it, so these functions never raise. They
# return what they found with the sign of it in words, for the log.


def _find_scheduler(variables: Mapping[str, str], root: Path) -> tuple[str | None, str | None]:
    for row in SCHEDULERS.values():
        for variable in row.variables:
            if variables.get(variable):
                return row.name, f"{variable} is set"
    if (root / SERVICE_ACCOUNT).is_dir():
        return "kubernetes", f"/{SERVICE_ACCOUNT} is there"
    return None, None


def _find_cloud(root: Path) -> tuple[str | None, str | None]:
    def field(name: str) -> str:
        try:
            return (root / "sys/class/dmi/id" / name).read_text(errors="replace").strip()
        except OSError:
            return ""

    for cloud in CLOUDS.values():
        sign = cloud.firmware(field)
        if sign is not None:
            return cloud.name, f"the firmware says {sign}"
    return None, None


def find_accelerator(variables: Mapping[str, str], root: Path = Path("/")) -> tuple[Accelerator, str | None]:
    """What the machine computes on, and by which sign; "none" without one.

    It looks at device files rather than TensorFlow's list: maintenance stops the machine, whether or not this process
    uses all of it, and looking must not start TensorFlow.
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

    `accelerator` is None to look for device files below `root`; metadata servers have `limit` seconds to answer, all
    together. Raises ValueError if ``KERAS_PREEMPT_PLATFORM`` names no platform, or a variable names no metadata server.
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
        self._stopping = Stopping()
        self._thread = threading.Thread(target=self._ask, name="keras_preempt-platform", daemon=True)
        self._patience = math.inf
        self._answered: tuple[str | None, str] | None = None
        self._platform: Platform | None = None
        found, device = find_accelerator(variables, root)
        self._accelerator: Accelerator = found if accelerator is None else accelerator
        if variables.get(environment.PLATFORM):
            self._platform = parse_name(variables[environment.PLATFORM], self._accelerator)
            return
        self._scheduler, variable = _find_scheduler(variables, root)
        self._cloud, firmware = _find_cloud(root)
        signs = (variable, firmware, device if accelerator is None else None)
        self._signs = tuple(sign for sign in signs if sign)
        # The metadata servers that variables name; if there are none and the cloud is unknown, every cloud's own.
        servers = [(cloud, cloud.address(variables)) for cloud in CLOUDS.values()]
        named = [server for server in servers if any(variables.get(name) for name in server[0].variables)]
        self._servers = named or (servers if self._cloud is None else [])
        if not self._servers:
            self._platform = self._compose(self._cloud)
        elif (known := _earlier_answer(variables)) is not None:
            if known[0] is None:
                self._patience = 0.0  # They are asked again, but nothing waits for them any more.
            else:
                self._answered = known
                self._platform = self._compose(*known)

    def start(self) -> Detection:
        """Sends the requests, if there are any. Returns itself."""
        if self._platform is None and self._thread.ident is None:
            self._thread.start()
        return self

    def result(self, timeout: float = LIMIT) -> Platform:
        """The platform as far as it is known after `timeout` seconds. The first call decides and ends the requests."""
        if self._platform is None:
            self.start()
            self._thread.join(min(timeout, self._patience))
            self.stop()
            self._answered = self._answered or (self._cloud, "no metadata server answered")
            self._platform = self._compose(*self._answered)
        return self._platform

    @property
    def answer(self) -> tuple[str | None, str] | None:
        """Which cloud metadata servers have named, and the sign of it; None if they did not have to be asked."""
        return self._answered

    def stop(self) -> None:
        """Ends the requests. Can be called twice, and without a start."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=min(self._limit, LIMIT))

    def _compose(self, cloud: str | None, *more: str) -> Platform:
        return compose(self._scheduler, cloud, self._accelerator, (*self._signs, *more))

    def _ask(self) -> None:
        deadline = time.monotonic() + self._limit  # For all servers together.
        for cloud, address in self._servers:
            path, recognizes, headers, method = cloud.probe
            client, left = MetadataClient(address, self._stopping), deadline - time.monotonic()
            if left <= 0:
                return
            try:
                answer = client.ask(path, headers=headers, timeout=left, method=method)
            except MetadataError as error:
                logger.debug("Not %s: %s", cloud.name, error)
                continue
            except Stopped:
                return
            if recognizes(answer):
                self._answered = cloud.name, f"the metadata server at {address} is that of {cloud.name}"
                return


_found: dict[tuple[str | None, ...], Platform] = {}

# What can change between two fits: a user may set a variable.
_VARIABLES = (environment.PLATFORM, *(name for cloud in CLOUDS.values() for name in cloud.variables))


def _earlier_answer(variables: Mapping[str, str]) -> tuple[str | None, str] | None:
    with contextlib.suppress(ValueError, TypeError):
        cloud, sign = json.loads(variables.get(environment.CLOUD, ""))
        if (cloud is None or cloud in CLOUDS) and isinstance(sign, str):
            return cloud, sign
    return None


class KnownOnce:
    """A `Detection` whose result this process remembers: a machine does not change, and asking takes a second."""

    def __init__(self) -> None:
        self._key = tuple(os.environ.get(name) for name in _VARIABLES)
        self._detection = None if self._key in _found else Detection().start()

    def result(self) -> Platform:
        """Waits for at most a second, and only the first time."""
        if self._detection is not None:
            _found[self._key] = self._detection.result()
        return _found[self._key]

    @property
    def answer(self) -> tuple[str | None, str] | None:
        """What metadata servers have answered to this process; None if they were not asked here."""
        return None if self._detection is None else self._detection.answer

    def stop(self) -> None:
        if self._detection is not None:
            self._detection.stop()
