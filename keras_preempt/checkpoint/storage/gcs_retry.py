"""The client's retries, within the budget of a call."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import requests
from google.auth.exceptions import GoogleAuthError
from google.cloud.storage.exceptions import InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY

from keras_preempt.checkpoint.storage.budget import Budget, Timeouts
from keras_preempt.checkpoint.storage.gcs_errors import NoTokenYet, OddAnswer, token_may_come

Retry = Callable[[Callable[..., Any]], Callable[..., Any]]
"""What the client library takes for a retry policy: it wraps a function that makes a request."""

timeouts_of_this_try: ContextVar[Timeouts | None] = ContextVar("timeouts_of_this_try", default=None)
"""The longest timeouts of a request that this thread makes now; None outside of a budget."""


def retry_within(
    budget: Budget,
    payload: int = 0,
    on_failure: Callable[[Exception], object] = lambda error: None,
    *,
    expected: type = object,
) -> Retry:
    """Returns a retry policy under which all requests of a call share what is left.

    The library wraps each request of an upload separately, and its own policy would restart its time with every
    chunk. The library decides which failures are worth another try. A request that returns no `expected` was
    answered by something other than the service, and is tried again.
    """

    def within_budget(request: Callable[..., Any]) -> Callable[..., Any]:
        pauses = budget.pauses(payload)

        def before_another_try(error: Exception) -> None:
            on_failure(error)
            if not next(pauses, False):
                raise error

        def attempt(*arguments: Any, **options: Any) -> Any:
            # The timeouts that the library was given were right for the first try only.
            token = timeouts_of_this_try.set(budget.timeout(payload))
            try:
                return _answer_of(lambda: request(*arguments, **options), expected)
            finally:
                timeouts_of_this_try.reset(token)

        # The library neither sleeps nor gives up: both are done here.
        policy = DEFAULT_RETRY.with_timeout(None).with_delay(initial=0.0, maximum=0.0)
        wrapped: Callable[..., Any] = policy(attempt, on_error=before_another_try)
        return wrapped

    return within_budget


def retry_each_within(budget: Budget) -> Retry:
    """Like `retry_within`, but gives each request of a series all the time of a call."""
    return lambda request: retry_within(budget.renewed(), expected=dict)(request)


def _answer_of(request: Callable[[], Any], expected: type) -> Any:
    """Turns passing failures that the library takes for final into connection errors, which it retries."""
    try:
        answer = request()
    except requests.JSONDecodeError as error:
        raise OddAnswer.of(error) from error
    except InvalidResponse as error:
        try:  # Reading it frees the connection, which the client leaves open forever on a download.
            error.response.content  # noqa: B018 (the attribute reads it)
        except requests.RequestException:
            error.response.close()
        if 200 <= error.response.status_code < 300:  # Success, and not of what was asked for.
            raise OddAnswer(f"an answer {error.response.status_code} without what was asked for") from error
        raise
    except GoogleAuthError as error:
        if token_may_come(error):
            raise NoTokenYet(str(error)) from error
        raise
    if not isinstance(answer, expected):
        raise OddAnswer(f"an answer without what was asked for: {answer!r:.60}")
    return answer
