"""Errors of obstore, explained: what failed, whether it may pass, and what to do about it.

The library tells most of it in words: the status, the body of the answer and the request, followed by the error's
structure. It does not tell headers, and so no Retry-After: pauses between tries are those of the budget.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from obstore.exceptions import AlreadyExistsError, BaseError, InvalidPathError, PreconditionError

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.obstore_calls import Silence


class ForeignAnswer(Exception):
    """Something other than the service has answered, or the service without what was asked for."""


class BadEnvironment(Exception):
    """The environment does not lead to the bucket; `cure` says what to do, None for what gives credentials."""

    def __init__(self, received: str, cure: str | None = None) -> None:
        super().__init__(received)
        self.cure = cure


FAILURES = (BaseError, OSError, ValueError, Silence, ForeignAnswer, BadEnvironment)
"""Everything that a call raises when it fails."""

_PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""The statuses after which a request is tried again for as long as there is time."""

_GOING = "ContainerBeingDeleted"  # Another of the same name may be made a moment later.
_PASSING_CODES = frozenset(
    {"RequestTimeout", "OperationAborted", "ConditionalRequestConflict", "ServerBusy", _GOING}
    | {
        "BadDigest",
        "XAmzContentSHA256Mismatch",
        "XAmzContentChecksumMismatch",
        "Md5Mismatch",
    }  # Damaged on the way.
)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
_MISSING = frozenset({"NoSuchBucket", "ContainerNotFound"})
_UNKNOWN_KEYS = frozenset(
    {
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "InvalidToken",
        "AuthenticationFailed",
        "InvalidAuthenticationInfo",
        "NoAuthenticationInformation",
    }
)
_LOCKED = ("BlobImmutable", "ImmutabilityPolicy", "LegalHold", "LeaseIdMissing")

_STATUS = re.compile(r"status code: (\d{3})|\(code: (\d{3})\)")
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_TOLD = re.compile(r"<Message>([^<\n]*)")
_DETAIL = re.compile(r"<AuthenticationErrorDetail>([^<\n]*)")
_REQUEST = re.compile(r"Error performing [A-Z]+ (\S+) in \S+ - ")
_REASON = re.compile(r'(?:message|error): "([^"]+)"')
_PREAMBLE = re.compile(
    r"\A(?:Generic \w+ error: |Object at location .*? (?:not found|already exists): "
    r"|The operation lacked .*? path .*?: )?"
    r"(?:Error performing \w+ request: )?(?:Bulk delete request failed for key .*?: )?"
)
_TRAILER = re.compile(r" \(code: \d{3}\)\Z")


@dataclass(frozen=True)
class CloudWords:
    """How the messages of one cloud speak.

    `service` is its storage, `bucket` what it calls a bucket; the others end a message, and say what to do.
    `create` and `permission` get the bucket's name. `tells_deletions` is whether the answer to a deletion has a form
    that nothing else would answer with.
    """

    service: str
    bucket: str
    login: str
    create: str
    permission: str
    wrong_region: str
    locked: str
    tells_deletions: bool


@dataclass(frozen=True)
class CallFailure:
    """What is known of a failed call.

    Attributes:
        kind: The class of what the call has raised; the error itself would hold what holds this.
        status: The HTTP status of the answer; None if there was none.
        code: The service's own word for it; empty if it gave none.
        told: What happened, in a few words.
        of_credentials: Whether no credentials could be had, so that the request was not sent.
        left: Whether the request may have reached the service.
    """

    kind: type[BaseException]
    status: int | None
    code: str
    told: str
    of_credentials: bool
    left: bool

    @classmethod
    def of(cls, error: BaseException, bucket: str) -> CallFailure:
        """Returns what an error tells of a call on the bucket."""
        text, _, structure = str(error).partition("\n\nDebug source:")
        request = _REQUEST.search(text)
        url = "" if request is None else request[1]
        elsewhere = url != "" and f"/{bucket}" not in url and f"//{bucket}." not in url
        provider = "credential provider" in text or isinstance(error, BadEnvironment)
        status, code = _STATUS.search(text), _CODE.search(text)
        return cls(
            type(error),
            None if status is None else int(status[1] or status[2]),
            "" if code is None else code[1].strip(),
            _told(error, text, structure),
            elsewhere or provider,
            not (elsewhere or provider or "kind: Connect," in structure or "kind: Builder" in structure),
        )

    @property
    def is_taken(self) -> bool:
        """Whether a create was refused because of what is or was there: perhaps by a request of ours."""
        taken = issubclass(self.kind, (AlreadyExistsError, PreconditionError))
        return taken and not self.is_locked and not self.is_missing_bucket

    @property
    def passes(self) -> bool:
        """Whether the call may succeed when it is made again; credentials are another matter."""
        if self.of_credentials or self.is_expired:
            return False
        if issubclass(self.kind, (Silence, ForeignAnswer)) or self.code in _PASSING_CODES:
            return True
        if self.status is not None:
            return self.status in _PASSING
        if issubclass(self.kind, (InvalidPathError, ValueError, BadEnvironment)) or "redirect" in self.told:
            return False
        return "builder error" not in self.told

    @property
    def is_uncertain(self) -> bool:
        """Whether a write may have taken effect nevertheless."""
        return self.left and self.passes

    @property
    def is_in_flight(self) -> bool:
        """Whether a write may still take effect later: the service has not answered it."""
        # Those answers come from a proxy in front of the service, and say nothing about the service itself.
        return self.is_uncertain and self.status in (None, 408, 502, 504)

    @property
    def is_missing_bucket(self) -> bool:
        """Whether the bucket is missing, and not an object in it."""
        return self.code in _MISSING or (self.status == 404 and "container does not exist" in self.told)

    @property
    def is_expired(self) -> bool:
        """Whether credentials were accepted once, and have to be renewed."""
        return self.code in _EXPIRED or (
            self.code in ("AuthenticationFailed", "InvalidAuthenticationInfo")
            and ("expired" in self.told.lower() or "specified time frame" in self.told)
        )

    @property
    def is_untold(self) -> bool:
        """Whether the request was refused without a reason: the answer to a HEAD has no body that could name one."""
        return self.status in (400, 401, 403) and not self.code

    @property
    def is_locked(self) -> bool:
        """Whether a retention policy, a hold or a lease forbids a change."""
        return self.code.startswith(_LOCKED) or any(each in self.told for each in ("immutab", "legal hold"))


def _told(error: BaseException, text: str, structure: str) -> str:
    message, code = _TOLD.search(text), _CODE.search(text)
    if message is not None:
        detail = _DETAIL.search(text)
        told = message[1] if detail is None else detail[1]
    elif code is not None:
        told = code[1]
    else:
        told = _TRAILER.sub("", _PREAMBLE.sub("", _REQUEST.sub("", text)))
        told = told.replace("Server returned non-2xx status code: ", "").strip()
        reasons: list[str] = _REASON.findall(structure)
        if "error sending request" in told and reasons:
            told = reasons[-1]
        elif "error sending request" in told and "IncompleteMessage" in structure:
            told = "the connection was closed without an answer"
    return " ".join(told.split()).rstrip(".: ") or type(error).__name__


@dataclass(frozen=True)
class Explaining:
    """Where a call was made, for the messages of its errors."""

    url: str
    bucket: str
    endpoint: str
    words: CloudWords

    def unavailable(self, error: BaseException, doing: str) -> StoreUnavailable:
        """Returns the error to raise for what a call has raised while `doing` something, as "create 'run.json'"."""
        failure = CallFailure.of(error, self.bucket)
        status = "" if failure.status is None or str(failure.status) in failure.told else f"{failure.status} "
        code = "" if not failure.code or failure.code in failure.told else f"{failure.code}: "
        return StoreUnavailable(
            f"Expected to {doing} in {self.url}. Received: {status}{code}{failure.told:.400}. "
            f"{self._cure(error, failure, doing)}"
        )

    def _cure(self, error: BaseException, failure: CallFailure, doing: str) -> str:
        words, told = self.words, failure.told.lower()
        if isinstance(error, BadEnvironment):
            return error.cure or words.login
        if failure.is_expired:
            return f"The credentials have expired, and were not renewed in time. {words.login}"
        if failure.of_credentials:
            return f"There are no credentials, or the server that gives them failed. {words.login}"
        if failure.code == "RequestTimeTooSkewed":
            return "Set the clock of this machine: requests are signed with its time."
        if failure.code in _UNKNOWN_KEYS or failure.status == 401:
            return f"The credentials were not accepted. {words.login}"
        if (
            failure.code in ("AuthorizationHeaderMalformed", "PermanentRedirect")
            or "incorrectly configured" in told
        ):
            return words.wrong_region
        if failure.is_locked or (failure.status in (409, 412) and doing.startswith("delete")):
            return words.locked
        if failure.is_missing_bucket or failure.code == _GOING:
            return words.create.format(bucket=self.bucket)
        if failure.status == 403:
            return words.permission.format(bucket=self.bucket)
        if failure.status in (409, 412):
            return (
                "The server says that the object exists, but shows none: something removes objects here at the same "
                f"time, or {self.endpoint} does not enforce preconditions. Give each job a prefix of its own."
            )
        if isinstance(error, InvalidPathError):
            return (
                "Something else has stored objects below this prefix whose names have empty, '.' or '..' components, "
                "which cannot be listed. Remove them, or give each job a prefix of its own."
            )
        if isinstance(error, ForeignAnswer) or "invalid" in told or "missing from response" in told:
            return f"Check that {self.endpoint} is {words.service}, and what is between it and this machine."
        if failure.status in _PASSING or failure.code in _PASSING_CODES:
            return "The service is overloaded or down; it was retried as long as there was time."
        if failure.status is not None:
            return (
                f"The server {self.endpoint} does not take this request; check the {words.bucket}'s name and the "
                "endpoint."
            )
        if "lookup address" in told or "dns" in told:
            return (
                f"There is no such server: check its name, as {self.endpoint}, and whether this machine can resolve "
                "names."
            )
        return f"Check the network on the way to {self.endpoint}, and that this is the right server."
