"""Notices of Amazon EC2 Spot: an interruption, two minutes ahead, and the hint that one has become likely."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from keras_preempt.notices.cloud import Cloud, Grace, Question, Row
from keras_preempt.notices.metadata_client import Address, Answer, MetadataClient
from keras_preempt.notices.notice import Notice
from keras_preempt.notices.source_thread import AskingSource, Backoff
from keras_preempt.notices.stopping import Stopping
from keras_preempt.process import environment

_ACTIONS = ("terminate", "stop", "hibernate")
_ANSWER_SECONDS = 3.0

_TOKEN_PATH = "/latest/api/token"
_TOKEN_LIFETIME = "X-aws-ec2-metadata-token-ttl-seconds"


class AwsSpot(AskingSource):
    """Listens for the interruption of this Spot instance, from `start` until `stop`.

    An interruption is never withdrawn. A rebalance recommendation comes as one notice that is only a hint.

    Args:
        on_notice: Called in the source's thread with each notice.
        address: Where the instance metadata service is; None to go by the environment.
        poll_seconds: The time between two questions, in seconds.
        token_seconds: For how long one session token is asked for, in whole seconds, 1 to 21600.
        answer_seconds: How long one answer may take, in seconds.
        backoff: How long to wait after failures.

    Raises:
        ValueError: The variable that names the service's address holds none.
    """

    def __init__(
        self,
        on_notice: Callable[[Notice], None],
        *,
        address: Address | None = None,
        poll_seconds: float = 5.0,
        token_seconds: int = 21600,
        answer_seconds: float = _ANSWER_SECONDS,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__("AWS Spot", on_notice, backoff)
        self._poll_seconds = poll_seconds
        self._service = ImdsV2(address or AWS.address(), token_seconds, answer_seconds)
        self._announced: tuple[str, float] | None = None
        self._hinted = False

    def _ask(self, stopping: Stopping) -> float:
        self._hear_interruption(self._service.get("spot/instance-action", stopping))
        if not self._hinted and self._announced is None:
            self._hear_recommendation(self._service.get("events/recommendations/rebalance", stopping))
        return self._poll_seconds

    def _hear_interruption(self, answer: Answer | None) -> None:
        if answer is None:
            return
        said = answer.json()
        action = said.get("action")
        if action not in _ACTIONS:
            raise answer.unexpected(f"an action out of {', '.join(_ACTIONS)}", repr(action)[:60])
        interruption = action, _instant(answer, said, "time")
        if interruption != self._announced:
            self._announced = interruption
            # One id: there is one instance, and a later announcement replaces an earlier one.
            self._on_notice(
                Notice(
                    "AWS Spot", f"interruption: {action}", time.time(), interruption[1], id="instance-action"
                )
            )

    def _hear_recommendation(self, answer: Answer | None) -> None:
        if answer is None:
            return
        _instant(answer, answer.json(), "noticeTime")  # Raises if it is not a recommendation.
        self._hinted = True
        self._on_notice(
            Notice("AWS Spot", "rebalance recommendation", time.time(), id="rebalance", hint=True)
        )


class ImdsV2:
    """Amazon's instance metadata service, version 2: each question carries a token, which is asked for first.

    Args:
        address: Where it is.
        token_seconds: For how long a token is asked for.
        answer_seconds: How long one answer may take, in seconds.
    """

    def __init__(self, address: Address, token_seconds: int, answer_seconds: float) -> None:
        self._client = MetadataClient(address)
        self._token_seconds = token_seconds
        self._answer_seconds = answer_seconds
        self._token = ""
        self._renew_at = 0.0

    def get(self, path: str, stopping: Stopping) -> Answer | None:
        """What is at a path below ``/latest/meta-data/``, or None if there is nothing.

        Raises:
            MetadataError: The service does not answer as documented.
            Stopped: `stopping` was set.
        """
        answer = self._with_token(path, stopping)
        if answer.status == 401:
            # The token has expired early: the clocks or the machine have jumped.
            self._token = ""
            answer = self._with_token(path, stopping)
        if answer.status == 404:
            return None
        answer.check_status()
        return answer

    def _with_token(self, path: str, stopping: Stopping) -> Answer:
        if not self._token or time.monotonic() >= self._renew_at:
            self._renew(stopping)
        return self._client.ask(
            f"/latest/meta-data/{path}",
            stopping,
            headers={"X-aws-ec2-metadata-token": self._token},
            timeout=self._answer_seconds,
        )

    def _renew(self, stopping: Stopping) -> None:
        asked = time.monotonic()
        answer = self._client.ask(
            _TOKEN_PATH,
            stopping,
            method="PUT",
            headers={_TOKEN_LIFETIME: str(self._token_seconds)},
            timeout=self._answer_seconds,
        )
        answer.check_status()
        token = answer.text()
        if not (token.isascii() and token.isprintable() and 0 < len(token) <= 1024):
            raise answer.unexpected("a token", f"{len(answer.body)} bytes of something else")
        self._token = token
        self._renew_at = asked + 0.9 * self._token_seconds


def _instant(answer: Answer, said: dict[str, Any], name: str) -> float:
    """A time such as 2017-09-18T08:22:00Z, in seconds since 1970."""
    text = said.get(name)
    try:
        instant = datetime.fromisoformat(text.replace("Z", "+00:00"))  # type: ignore[union-attr]
        return instant.replace(tzinfo=instant.tzinfo or timezone.utc).timestamp()
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise answer.unexpected(f"{name!r} such as 2017-09-18T08:22:00Z", repr(text)[:60]) from None


def _firmware(field: Callable[[str], str]) -> str | None:
    for name in ("sys_vendor", "bios_vendor"):
        if (vendor := field(name)) == "Amazon EC2":
            return vendor
    version = field("bios_version").lower()  # Machines on Xen: "4.11.amazon".
    return version if "amazon" in version else None


def _is_amazons(answer: Answer) -> bool:
    return answer.status == 200 and _TOKEN_LIFETIME.lower() in answer.headers


AWS = Cloud(
    "aws",
    variables=(environment.AWS_METADATA_ENDPOINT,),
    firmware=_firmware,
    question=Question(_TOKEN_PATH, _is_amazons, headers={_TOKEN_LIFETIME: "60"}, method="PUT"),
    sources=lambda on_notice, on_withdrawn, lead: (AwsSpot(on_notice),),
    machines=(Row("aws", grace=Grace(120.0, "EC2's for Spot machines")),),
)
