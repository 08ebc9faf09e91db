"""Notices of Amazon EC2 Spot: an interruption, two minutes ahead, and the hint that one has become likely."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone

from keras_preempt.notices import Notice, OnNotice
from keras_preempt.notices.cloud import Cloud, Grace, Probe, Row
from keras_preempt.notices.metadata_client import Address, Answer, MetadataClient
from keras_preempt.notices.polling import Backoff, PollingSource
from keras_preempt.process import environment

_ACTIONS = ("terminate", "stop", "hibernate")

_TOKEN_PATH = "/latest/api/token"
_TOKEN_LIFETIME = "X-aws-ec2-metadata-token-ttl-seconds"


class AwsSpot(PollingSource):
    """Listens for the interruption of this Spot instance, which is never withdrawn.

    A rebalance recommendation comes as one notice that is only a hint. Requests follow version 2 of the instance
    metadata service: each carries a token that is valid for `token_seconds` (1 to 21600).
    """

    def __init__(
        self,
        on_notice: OnNotice,
        *,
        address: Address | None = None,
        poll_seconds: float = 5.0,
        token_seconds: int = 21600,
        answer_seconds: float = 3.0,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__("AWS Spot", on_notice, backoff)
        self._client = MetadataClient(address or AWS.address(), self._stopping)
        self._poll_seconds = poll_seconds
        self._token_seconds = token_seconds
        self._answer_seconds = answer_seconds
        self._token = ""
        self._renew_at = 0.0
        self._announced: tuple[str, float] | None = None
        self._hinted = False

    def _ask(self) -> float:
        if (answer := self._get("spot/instance-action")) is not None:
            action = answer.json().get("action")
            if action not in _ACTIONS:
                raise answer.unexpected(f"an action out of {', '.join(_ACTIONS)}", repr(action)[:60])
            interruption = action, _instant(answer, "time")
            if interruption != self._announced:
                self._announced = interruption
                # One id: there is one instance, and a later announcement replaces an earlier one.
                reason = f"interruption: {action}"
                self._on_notice(
                    Notice("AWS Spot", reason, time.time(), interruption[1], id="instance-action")
                )
        if not self._hinted and self._announced is None:
            answer = self._get("events/recommendations/rebalance")
            if answer is not None:
                _instant(answer, "noticeTime")  # Raises if it is not a recommendation.
                self._hinted = True
                self._on_notice(
                    Notice("AWS Spot", "rebalance recommendation", time.time(), id="rebalance", hint=True)
                )
        return self._poll_seconds

    def _get(self, path: str) -> Answer | None:
        """The answer about what is below ``/latest/meta-data/``; None if there is nothing."""
        path, timeout = f"/latest/meta-data/{path}", self._answer_seconds
        for _ in range(2):
            if not self._token or time.monotonic() >= self._renew_at:
                asked = time.monotonic()
                lifetime = {_TOKEN_LIFETIME: str(self._token_seconds)}
                answer = self._client.ask(_TOKEN_PATH, method="PUT", headers=lifetime, timeout=timeout)
                answer.check_status()
                token = answer.text()
                if not (token.isascii() and token.isprintable() and 0 < len(token) <= 1024):
                    raise answer.unexpected("a token", f"{len(answer.body)} bytes of something else")
                self._token = token
                self._renew_at = asked + 0.9 * self._token_seconds
            headers = {"X-aws-ec2-metadata-token": self._token}
            answer = self._client.ask(path, headers=headers, timeout=timeout)
            if answer.status != 401:
                break
            self._token = ""  # It has expired early: the clocks or the machine have jumped.
        if answer.status == 404:
            return None
        answer.check_status()
        return answer


def _instant(answer: Answer, name: str) -> float:
    """The time under a name of the answer, such as 2017-09-18T08:22:00Z, in seconds since 1970."""
    text = answer.json().get(name)
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


AWS = Cloud(
    "aws",
    variables=(environment.AWS_METADATA_ENDPOINT,),
    firmware=_firmware,
    probe=Probe(
        _TOKEN_PATH,
        lambda answer: answer.status == 200 and _TOKEN_LIFETIME.lower() in answer.headers,
        {_TOKEN_LIFETIME: "60"},
        method="PUT",
    ),
    sources=lambda on_notice, on_withdrawn, lead: (AwsSpot(on_notice),),
    machines=(Row("aws", grace=Grace(120.0, "EC2's for Spot machines")),),
)
