"""Resumable uploads: pieces, lost sessions, and what is kept of a piece that was cut short."""

from __future__ import annotations

import io
import random

import pytest
import requests
from google.api_core import exceptions

QUANTUM = 256 * 1024
CONTENT = random.Random(1).randbytes(5 * QUANTUM + 12345)
SIZE = len(CONTENT)
BIG = random.Random(2).randbytes(33 * QUANTUM + 12345)
"""More than 8 MiB: of less the client sends all in one request, if it knows the size."""


def start(gcs, name="a", total=SIZE, **query):
    response = requests.post(
        f"{gcs.endpoint}/upload/storage/v1/b/bucket/o",
        params={"uploadType": "resumable", **query},
        json={"name": name},
        headers={} if total is None else {"X-Upload-Content-Length": str(total)},
        timeout=10,
    )
    response.raise_for_status()
    return response.headers["Location"]


def send(where, first, data, total=SIZE, **headers):
    place = f"bytes {first}-{first + len(data) - 1}/{total}" if data else f"bytes */{total}"
    return requests.put(where, data=data, headers={"Content-Range": place, **headers}, timeout=10)


@pytest.mark.parametrize("size", [QUANTUM, 8 * QUANTUM, 40 * QUANTUM])
@pytest.mark.parametrize("known", [True, False])
def test_an_upload_in_pieces_of_any_size_is_stored_whole(gcs, bucket, size, known):
    blob = bucket.blob("a", chunk_size=size)
    blob.metadata = {"token": "7"}
    total = len(BIG) if known else None
    blob.upload_from_file(io.BytesIO(BIG), size=total, checksum="crc32c", if_generation_match=0)
    assert gcs.content("bucket", "a") == BIG
    assert gcs.objects("bucket")["a"].metadata == {"token": "7"}
    pieces = [request for request in gcs.requests if request.method == "PUT"]
    assert [request.status for request in pieces] == [308] * (len(BIG) // size) + [200]


def test_a_streamed_file_is_stored_when_it_is_closed_also_where_it_is_empty(gcs, bucket):
    bucket.blob("empty", chunk_size=QUANTUM).upload_from_file(io.BytesIO(b""), checksum="crc32c")
    assert gcs.content("bucket", "empty") == b""
    with bucket.blob("a", chunk_size=QUANTUM).open("wb") as file:
        for at in range(0, len(CONTENT), 100_000):
            file.write(CONTENT[at : at + 100_000])
        assert gcs.objects("bucket").keys() == {"empty"}
    assert gcs.content("bucket", "a") == CONTENT


def test_the_service_says_how_much_it_keeps_and_the_end_may_be_sent_or_asked_for_again(gcs):
    where, piece = start(gcs), CONTENT[QUANTUM : 2 * QUANTUM + 5]
    status = send(where, 0, b"", "*")
    assert (status.status_code, "Range" in status.headers) == (308, False)
    assert send(where, 0, CONTENT[:QUANTUM]).headers["Range"] == f"bytes=0-{QUANTUM - 1}"
    assert send(where, QUANTUM, piece).headers["Range"] == f"bytes=0-{2 * QUANTUM - 1}"
    assert send(where, 0, b"", "*").headers["Range"] == f"bytes=0-{2 * QUANTUM - 1}"
    assert send(where, 3 * QUANTUM, CONTENT[3 * QUANTUM :]).status_code == 400
    end = send(where, QUANTUM, CONTENT[QUANTUM:])
    assert end.status_code == 200
    assert send(where, 0, b"", "*").json() == end.json()
    assert send(where, 0, CONTENT).json() == end.json()
    assert gcs.objects("bucket")["a"].generation == int(end.json()["generation"])
    assert gcs.content("bucket", "a") == CONTENT


def test_a_client_that_cannot_bear_a_308_is_told_it_in_a_header(gcs):
    """As Google's client for Go asks, whose HTTP library takes every 308 for a redirection."""
    where, no_308 = start(gcs), {"X-GUploader-No-308": "yes"}
    piece = send(where, 0, CONTENT[:QUANTUM], **no_308)
    assert (piece.status_code, piece.headers["X-HTTP-Status-Code-Override"]) == (200, "308")
    assert (piece.headers["Range"], piece.content) == (f"bytes=0-{QUANTUM - 1}", b"")
    end = send(where, QUANTUM, CONTENT[QUANTUM:], **no_308)
    assert (end.status_code, "X-HTTP-Status-Code-Override" in end.headers) == (200, False)
    assert end.json()["size"] == str(SIZE)
    assert gcs.content("bucket", "a") == CONTENT


def test_more_or_other_than_was_announced_is_refused(gcs):
    where = start(gcs, total=10)
    assert send(where, 0, b"0123456789a", 11).status_code == 400
    assert send(where, 0, b"0123456789a", "*").status_code == 400
    for place in ("bytes 0-9/10", "2 to 3"):
        assert send(where, 0, b"01", **{"Content-Range": place}).status_code == 400
    assert gcs.objects("bucket") == {}


def test_a_precondition_is_checked_at_the_start_and_again_at_the_end(gcs, bucket):
    where = start(gcs, ifGenerationMatch="0")
    send(where, 0, CONTENT[:QUANTUM])
    gcs.put("bucket", "a", b"theirs")
    for _ in range(2):
        assert send(where, QUANTUM, CONTENT[QUANTUM:]).status_code == 412
    assert gcs.content("bucket", "a") == b"theirs"
    gcs.remove("bucket", "a")
    assert send(where, QUANTUM, CONTENT[QUANTUM:]).status_code == 412  # Refused once, refused for good.
    assert gcs.objects("bucket") == {}
    gcs.put("bucket", "a", b"theirs")
    gcs.forget_requests()
    blob = bucket.blob("a", chunk_size=QUANTUM)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_file(io.BytesIO(CONTENT), if_generation_match=0, retry=None)
    assert "PUT" not in {request.method for request in gcs.requests}


def test_a_cancelled_unknown_or_lost_session_takes_nothing(gcs):
    where = start(gcs)
    assert requests.delete(where, timeout=10).status_code == 499
    assert send(where, 0, CONTENT).status_code == 410
    assert send(where + "x", 0, CONTENT).status_code == 404
    assert gcs.objects("bucket") == {}
    where = start(gcs)
    send(where, 0, CONTENT[:QUANTUM])
    assert gcs.lose_sessions() == 1
    for _ in range(2):
        assert send(where, QUANTUM, CONTENT[QUANTUM:]).status_code == 410
    done = start(gcs, "b")
    send(done, 0, CONTENT)
    assert gcs.lose_sessions() == 0
    assert send(done, 0, b"", "*").status_code == 200


def test_a_piece_that_was_cut_short_is_kept_in_whole_multiples(gcs):
    where = start(gcs)
    gcs.fail_next("reset", match="PUT")
    with pytest.raises(requests.ConnectionError):
        send(where, 0, CONTENT)
    kept = len(CONTENT) // 2 // QUANTUM * QUANTUM
    assert send(where, 0, b"", "*").headers["Range"] == f"bytes=0-{kept - 1}"
    assert send(where, kept, CONTENT[kept:]).status_code == 200
    assert gcs.content("bucket", "a") == CONTENT
