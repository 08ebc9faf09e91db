"""Requests as the vendors' own code signs them: FakeS3 and FakeAzure answer as documented, and so do the emulators.

Of moto and Azurite is said where they differ, and why the fakes do as they do: `MOTO` and `AZURITE`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keras_preempt.testing import FakeS3
from tests.testing.buckets import s3_cases
from tests.testing.buckets.cases import Case, outcome
from tests.testing.buckets.signing import s3_sender
from tests.testing.emulators import moto_endpoint


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with FakeS3() as fake:
        fake.expired_tokens.add("expired")
        yield fake.endpoint


@pytest.mark.parametrize("case", [*s3_cases.CASES, *s3_cases.ACCESS], ids=str)
def test_the_fake_answers_as_s3_does(case: Case, s3: str) -> None:
    assert outcome(case, s3_sender(s3)) == case.expect


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with moto_endpoint() as endpoint:
        yield endpoint


@pytest.mark.chaos
@pytest.mark.parametrize("case", s3_cases.CASES, ids=str)
def test_moto_answers_as_the_fake_but_where_it_is_known_to_differ(case: Case, moto: str) -> None:
    assert outcome(case, s3_sender(moto)) == case.expect
