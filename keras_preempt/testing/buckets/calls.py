"""What the fakes of the three services have in common: a request in, an answer out, without sockets and clocks."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from keras_preempt.testing.buckets.errors import ServiceError
from keras_preempt.testing.buckets.faults import CONDITIONAL
from keras_preempt.testing.server import Reply


@dataclass
class BucketCall(abc.ABC):
    """A request. Header names are in lower case; `body` is what arrived of it, `whole` says if that is all."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = b""
    whole: bool = True

    @cached_property
    def path(self) -> str:
        return unquote(urlsplit(self.url).path)

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        return parse_qsl(urlsplit(self.url).query, keep_blank_values=True)

    @cached_property
    def query(self) -> dict[str, str]:
        return dict(self.pairs)

    @property
    def named_by_head(self) -> bool:
        """Whether path and headers name the object, so that a fault can happen before the body has arrived."""
        return True

    @property
    def part(self) -> str:
        """Which part of its object it is about, so that seeded faults tell parts apart that are moved at once."""
        return ""

    @property
    @abc.abstractmethod
    def category(self) -> str:
        """What kinds of fault can happen to it: a key of `APPLICABLE`."""

    @property
    def conditional(self) -> bool:
        """Whether it is carried out only if a precondition holds."""
        return "if-match" in self.headers or "if-none-match" in self.headers

    @property
    def keeps_pieces(self) -> bool:
        """Whether the service keeps what arrived of it when its connection ends."""
        return False

    def content_middle(self) -> int:
        """The place in the body of the byte in the middle of the content."""
        return len(self.body) // 2


C = TypeVar("C", bound=BucketCall)


class BucketApi(abc.ABC, Generic[C]):
    """Answers calls from what is stored."""

    applicable: ClassVar[Mapping[str, frozenset[str]]]
    """The kinds of fault that can happen to each category of requests; those of `CONDITIONAL` to conditional ones."""

    endpoint: str
    unauthenticated: bool = False

    @abc.abstractmethod
    def call(self, method: str, url: str, headers: Mapping[str, str]) -> C:
        """Returns the call that a request with these headers is."""

    @abc.abstractmethod
    def target(self, call: C) -> str:
        """``bucket/object`` as far as the call names them."""

    def faults_of(self, call: C) -> frozenset[str]:
        kinds = self.applicable[call.category]
        return kinds if call.conditional else kinds - CONDITIONAL

    def answer(self, call: C) -> Reply:
        try:
            return self._route(call)
        except ServiceError as error:
            return self._refusal(error, call)

    def fault(self, call: C, kind: str, retry_after: int) -> Reply:
        """The answer to a call that meets a fault whose kind is an error of the service."""
        error = self._error_of(kind)
        if kind == "429":
            error.headers["Retry-After"] = str(retry_after)
        return self._refusal(error, call)

    def lose_upload(self, call: C) -> None:
        """Forgets the upload of which the call is a part."""

    @abc.abstractmethod
    def _route(self, call: C) -> Reply:
        """Carries a call out. May raise `ServiceError`."""

    @abc.abstractmethod
    def _error_of(self, kind: str) -> ServiceError:
        """The error that a fault stands for; `kind` is a status or one of the service's own."""

    @abc.abstractmethod
    def _refusal(self, error: ServiceError, call: C) -> Reply:
        """An error as the service writes it."""


AnyApi = BucketApi[Any]
