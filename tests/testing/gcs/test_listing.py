from __future__ import annotations

from datetime import datetime, timezone

import pytest
from google.api_core import exceptions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_preempt.testing.buckets.objects import ObjectBytes, StoredObject
from keras_preempt.testing.gcs.reads import listing_page

NOW = datetime.now(timezone.utc)
NAMES = ["a", "a/1", "a/2", "a/b/3", "a/b/4", "b", "c/5", "ä/6"]


@pytest.fixture
def full(gcs, bucket):
    for name in reversed(NAMES):
        gcs.put("bucket", name, b"")
    return bucket


def test_a_listing_is_sorted_and_complete_and_makes_one_request_a_page(gcs, full):
    for size, pages in ((1, 8), (2, 4), (3, 3), (7, 2), (8, 1), (9, 1), (None, 1)):
        gcs.forget_requests()
        assert [blob.name for blob in full.list_blobs(page_size=size)] == NAMES
        assert sum(request.path.startswith("/storage/v1/b/bucket/o?") for request in gcs.requests) == pages


@pytest.mark.parametrize("size", [1, 2, None])
@pytest.mark.parametrize(
    ("prefix", "names", "prefixes"),
    [
        ("", ["a", "b"], {"a/", "c/", "ä/"}),
        ("a/", ["a/1", "a/2"], {"a/b/"}),
        ("a", ["a"], {"a/"}),
        ("a/b", [], {"a/b/"}),
        ("z", [], set()),
    ],
)
def test_a_delimiter_folds_what_is_below_it(full, prefix, names, prefixes, size):
    listing = full.list_blobs(prefix=prefix, delimiter="/", page_size=size)
    assert [blob.name for blob in listing] == names
    assert listing.prefixes == prefixes


def test_offsets_and_the_largest_number_of_results_bound_a_listing_and_a_token_must_be_its_own(full):
    assert [b.name for b in full.list_blobs(start_offset="a/2", end_offset="b")] == ["a/2", "a/b/3", "a/b/4"]
    assert [b.name for b in full.list_blobs(max_results=2)] == ["a", "a/1"]
    with pytest.raises(exceptions.BadRequest, match="page token"):
        list(full.list_blobs(page_token="*"))


def test_a_listing_sees_every_write_and_delete_before_it(bucket):
    for number in range(20):
        bucket.blob(f"n{number % 3}").upload_from_string(b"")
        bucket.blob(f"n{number % 3}").delete()
        bucket.blob(f"m{number:02}").upload_from_string(b"")
        assert [blob.name for blob in bucket.list_blobs()] == [f"m{n:02}" for n in range(number + 1)]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sets(st.text("ab/", min_size=1, max_size=5)), st.text("ab/", max_size=2), st.integers(1, 5))
def test_pages_put_together_are_the_unpaged_listing(names, prefix, limit):
    objects = {name: StoredObject("b", name, ObjectBytes(b""), 1, {}, NOW, NOW) for name in sorted(names)}
    folded = {
        name[: name.index("/", len(prefix)) + 1]
        for name in names
        if name.startswith(prefix) and "/" in name[len(prefix) :]
    }
    plain = [name for name in objects if name.startswith(prefix) and "/" not in name[len(prefix) :]]
    seen_names, seen_prefixes, token = [], [], None
    for _ in range(len(names) + 2):
        query = {"prefix": prefix, "delimiter": "/", "maxResults": str(limit)}
        answer = listing_page(objects, query | ({"pageToken": token} if token else {}))
        assert len(answer.get("items", [])) + len(answer.get("prefixes", [])) <= limit
        seen_names += [item["name"] for item in answer.get("items", [])]
        seen_prefixes += answer.get("prefixes", [])
        token = answer.get("nextPageToken")
        if token is None:
            break
    assert token is None
    assert seen_names == plain
    assert seen_prefixes == sorted(folded)
