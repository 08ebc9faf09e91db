"""Finds out where this process runs, beside start-up: a wrong or silent answer must not hold training up.

What the machine says about itself comes first, and takes no time. A metadata server is asked only where the
firmware names no cloud (a container may hide it), or where a variable says where the server is; in a thread, for
one second at most. It is believed by what only a metadata server says, since many a network answers everything.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from keras_preempt.notices import machine_clues
from keras_preempt.notices.metadata_address import Address, aws_address, azure_address, gce_address
from keras_preempt.notices.metadata_client import Answer, MetadataClient, MetadataError
from keras_preempt.notices.platform import AWS, AZURE, GCE, Accelerator, Platform, compose, parse_name
from keras_preempt.notices.stopping import Stopped, Stopping
from keras_preempt.process import environment

logger = logging.getLogger("keras_preempt")

_VARIABLES = (
    environment.PLATFORM,
    environment.GCE_METADATA_HOST,
    environment.GCE_METADATA_IP,
    environment.AWS_METADATA_ENDPOINT,
    environment.AZURE_METADATA_HOST,
)

LIMIT = 1.0
"""Seconds that metadata servers get for an answer, all together."""


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
        found, sign = machine_clues.accelerator(variables, root)
        self._accelerator: Accelerator = found if accelerator is None else accelerator
        if variables.get(environment.PLATFORM):
            self._platform = parse_name(variables[environment.PLATFORM], self._accelerator)
            return
        scheduler, cloud = machine_clues.scheduler(variables, root), machine_clues.cloud(root)
        signs = [clue.sign for clue in (scheduler, cloud) if clue]
        self._signs = (*signs, sign) if sign and accelerator is None else tuple(signs)
        self._scheduler = scheduler.name if scheduler else None
        self._cloud = cloud.name if cloud else None
        self._questions = _questions(variables, ask_all=cloud is None)
        if not self._questions:
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
        deadline = time.monotonic() + self._limit  # Of all questions together.
        try:
            for question in self._questions:
                try:
                    answer = question.ask(stopping, deadline - time.monotonic())
                except MetadataError as error:
                    logger.debug("Not %s: %s", question.cloud, error)
                    continue
                if question.recognises(answer):
                    sign = f"the metadata server at {question.address} is that of {question.cloud}"
                    self._answered = (question.cloud, sign)
                    return
        except Stopped:
            return
        finally:
            stopping.close()


_found: dict[tuple[str | None, ...], Platform] = {}


class KnownOnce:
    """A `Detection` whose result this process remembers: a machine does not change, and asking takes a second.

    Raises:
        ValueError: See `Detection`.
    """

    def __init__(self) -> None:
        # By what can change: a user may set a variable between two fits.
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


@dataclass(frozen=True)
class _Question:
    """What to ask the metadata server of one cloud, and how to know it by its answer."""

    cloud: str
    address: Address
    method: str
    path: str
    headers: Mapping[str, str]
    recognises: Callable[[Answer], bool]

    def ask(self, stopping: Stopping, timeout: float) -> Answer:
        client = MetadataClient(self.address)
        return client.ask(self.path, stopping, headers=self.headers, timeout=timeout, method=self.method)


def _is_gce(answer: Answer) -> bool:
    return answer.headers.get("metadata-flavor") == "Google"


def _is_aws(answer: Answer) -> bool:
    return answer.status == 200 and "x-aws-ec2-metadata-token-ttl-seconds" in answer.headers


def _is_azure(answer: Answer) -> bool:
    try:
        return answer.status == 200 and "azEnvironment" in answer.json()
    except MetadataError:
        return False


def _questions(variables: Mapping[str, str], *, ask_all: bool) -> list[_Question]:
    """The servers that variables name; if there are none and `ask_all`, every cloud's own."""
    flavor = {"Metadata-Flavor": "Google"}
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    instance = "/metadata/instance/compute?api-version=2021-02-01"
    gce = _Question(GCE, gce_address(variables), "GET", "/computeMetadata/v1/instance/id", flavor, _is_gce)
    aws = _Question(AWS, aws_address(variables), "PUT", "/latest/api/token", lifetime, _is_aws)
    azure = _Question(AZURE, azure_address(variables), "GET", instance, {"Metadata": "true"}, _is_azure)
    named = [
        question
        for question, names in (
            (gce, (environment.GCE_METADATA_HOST, environment.GCE_METADATA_IP)),
            (aws, (environment.AWS_METADATA_ENDPOINT,)),
            (azure, (environment.AZURE_METADATA_HOST,)),
        )
        if any(variables.get(name) for name in names)
    ]
    return named or ([gce, aws, azure] if ask_all else [])
