"""Several deletions in one request. Source: https://learn.microsoft.com/rest/api/storageservices/blob-batch."""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus

from keras_preempt.testing.azure.call import AzureCall
from keras_preempt.testing.azure.errors import AzureError, not_answered
from keras_preempt.testing.server import Reply

_BOUNDARY = re.compile(r'multipart/mixed; *boundary="?([^";]+)"?')
_MOST = 256
_LINE = "\r\n"


def answer_batch(call: AzureCall, answer: Callable[[AzureCall], Reply]) -> Reply:
    """Carries out the requests that a body holds, each of which has an answer of its own in the answer."""
    found = _BOUNDARY.match(call.headers.get("content-type", ""))
    if found is None:
        raise _invalid("The content type of a batch is multipart/mixed with a boundary.")
    parts = call.body.decode("latin-1").split(f"--{found[1]}")[1:-1]
    if not 0 < len(parts) <= _MOST:
        raise _invalid(f"The batch request contains {len(parts)} subrequests. It may contain 1 to {_MOST}.")
    mark = f"batchresponse_{found[1].removeprefix('batch_')}"
    pieces = []
    for part in parts:
        outer, _, request = part.lstrip(_LINE).partition(_LINE * 2)
        inner = _request(request)
        if inner.method != "DELETE":
            raise not_answered(f"a batch with {inner.method}")
        content_id = re.search(r"(?im)^content-id: *(\S+)", outer)
        pieces.append(_written(mark, content_id[1] if content_id else "", answer(inner)))
    body = "".join(pieces) + f"--{mark}--{_LINE}"
    return Reply(202, body.encode(), {"Content-Type": f"multipart/mixed; boundary={mark}"})


def _request(text: str) -> AzureCall:
    head, _, body = text.partition(_LINE * 2)
    first, *lines = head.split(_LINE)
    words = first.split(" ")
    if len(words) != 3:
        raise _invalid("One of the request inputs is not valid.")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return AzureCall(words[0], words[1], headers, body.strip(_LINE).encode("latin-1"))


def _written(mark: str, content_id: str, reply: Reply) -> str:
    headers = {**reply.headers, **({"Content-Length": str(len(reply.body))} if reply.body else {})}
    lines = [
        f"--{mark}",
        "Content-Type: application/http",
        *([f"Content-ID: {content_id}"] if content_id else []),
        "",
    ]
    lines.append(f"HTTP/1.1 {reply.status} {reply.phrase or HTTPStatus(reply.status).phrase}")
    lines += [*(f"{name}: {value}" for name, value in headers.items()), "", reply.body.decode()]
    return _LINE.join(lines) + _LINE


def _invalid(message: str) -> AzureError:
    return AzureError(400, "InvalidInput", message)
