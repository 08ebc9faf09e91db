"""The errors that a service answers with, whatever words it has for them."""

from __future__ import annotations

ERROR_STATUSES = frozenset({401, 403, 408, 429, 500, 502, 503, 504})
"""Statuses that can be answered whatever was asked."""


class ServiceError(Exception):
    """An answer that is an error: its HTTP status, a word for programs, a sentence for people, and further headers.

    `details` are further elements of its document, where a service has them.
    """

    def __init__(
        self, status: int, reason: str, message: str, headers: dict[str, str] | None = None, /, **details: str
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.headers = headers or {}
        self.details = details
