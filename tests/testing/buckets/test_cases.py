"""Requests as the vendors' own code signs them: FakeS3 and FakeAzure answer as documented, and so do the emulators.

`known_differences` says where moto and Azurite differ, and why the fakes do not answer as they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from keras_preempt.testing import FakeAzure, FakeS3
from tests.testing.buckets import azure_blob_cases as blobs
from tests.testing.buckets import azure_container_cases as containers
from tests.testing.buckets import s3_bucket_cases as buckets
from tests.testing.buckets import s3_object_cases as objects
from tests.testing.buckets.cases import Case, Send, outcome
from tests.testing.buckets.known_differences import AZURITE, MOTO
from tests.testing.buckets.signing import ACCOUNT, ACCOUNT_KEY, azure_sender, s3_sender
from tests.testing.emulators import azurite_endpoint, moto_endpoint

S3_CASES = [
    *(*objects.WRITES, *objects.READS, *buckets.DELETIONS, *buckets.LISTINGS, *buckets.PARTS),
    *(*buckets.BUCKETS, *buckets.VERSIONS),
]
AZURE_CASES = [
    *(*blobs.WRITES, *blobs.READS, *containers.DELETIONS, *containers.LISTINGS, *containers.BLOCKS),
    *(*containers.CONTAINERS, *containers.ACCESS),
]


@pytest.fixture(scope="module")
def fake_s3() -> Iterator[str]:
    with FakeS3() as fake:
        fake.expired_tokens.add("expired")
        yield fake.endpoint


@pytest.mark.parametrize("case", [*S3_CASES, *buckets.ACCESS], ids=str)
def test_the_fake_answers_as_s3_does(case: Case, fake_s3: str) -> None:
    assert outcome(case, s3_sender(fake_s3)) == case.expect


@pytest.fixture(scope="module")
def fake_azure() -> Iterator[str]:
    with FakeAzure() as fake:
        assert (fake.account, fake.account_key) == (ACCOUNT, ACCOUNT_KEY)
        yield fake.endpoint


@pytest.mark.parametrize("case", AZURE_CASES, ids=str)
def test_the_fake_answers_as_azure_does(case: Case, fake_azure: str) -> None:
    assert outcome(case, azure_sender(fake_azure)) == case.expect


def differing(cases: list[Case], new_sender: Callable[[], Send]) -> dict[str, str]:
    found = {case.name: (outcome(case, new_sender()), case.expect) for case in cases}
    return {name: seen for name, (seen, expected) in found.items() if seen != expected}


def known(differences: dict[str, tuple[str, str]], cases: list[Case]) -> dict[str, str]:
    names = {case.name for case in cases}
    return {name: seen for name, (seen, _) in differences.items() if name in names}


SHORT = [case for case in S3_CASES if case.name in MOTO or case in objects.READS][:20]


@pytest.mark.parametrize(
    "cases", [SHORT, pytest.param(S3_CASES, marks=pytest.mark.chaos)], ids=["short", "all"]
)
def test_moto_answers_as_the_fake_but_where_it_is_known_to_differ(cases: list[Case]) -> None:
    with moto_endpoint() as endpoint:
        assert differing(cases, lambda: s3_sender(endpoint)) == known(MOTO, cases)


@pytest.mark.chaos
def test_azurite_answers_as_the_fake_but_where_it_is_known_to_differ() -> None:
    with azurite_endpoint(ACCOUNT, ACCOUNT_KEY) as endpoint:
        assert differing(AZURE_CASES, lambda: azure_sender(endpoint)) == known(AZURITE, AZURE_CASES)


def test_a_name_stands_for_one_case() -> None:
    for cases in (S3_CASES, AZURE_CASES):
        assert len({case.name for case in cases}) == len(cases)
