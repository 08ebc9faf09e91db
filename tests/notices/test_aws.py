from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from keras_preempt.notices.aws import AwsSpot
from keras_preempt.testing import FakeMetadata
from keras_preempt.testing.server import Reply
from tests.notices.ear import PATIENCE, POLL, Ear, quick, started, wait_for_more

ACTION, REBALANCE, TOKEN = "spot/instance-action", "events/recommendations/rebalance", "PUT /latest/api/token"


@pytest.fixture
def spot(fake: FakeMetadata, ear: Ear) -> Iterator[AwsSpot]:
    """A source that has its first token, and has asked a few times."""
    with started(AwsSpot(ear.notice, poll_seconds=POLL, backoff=quick())) as source:
        wait_for_more(fake, ACTION)
        yield source


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_an_interruption_is_heard_at_the_next_question_with_its_deadline(spot, fake, ear, action):
    at = float(int(time.time()) + 97)
    published = time.monotonic()
    fake.aws.interrupt(action, at)
    notice = ear.wait()
    assert ear.heard_at[0] - published < 1 + POLL
    assert notice.deadline == at
    assert (notice.source, notice.reason, notice.hint) == ("AWS Spot", f"interruption: {action}", False)
    assert ear.hears_nothing_new()
    fake.aws.clear()
    assert ear.hears_nothing_new()  # It is not taken back.


def test_an_earlier_interruption_replaces_the_one_that_was_announced(spot, fake, ear):
    now = float(int(time.time()))
    fake.aws.interrupt("terminate", now + 120)
    first = ear.wait()
    fake.aws.interrupt("terminate", now + 60)
    second = ear.wait(2)
    assert second.id == first.id
    assert second.deadline == now + 60


def test_a_recommendation_to_move_is_a_hint_and_comes_once(spot, fake, ear):
    fake.aws.rebalance()
    notice = ear.wait()
    assert notice.hint
    assert notice.deadline is None
    fake.aws.rebalance(at=time.time() + 60)
    assert ear.hears_nothing_new()
    fake.aws.interrupt()
    assert not ear.wait(2).hint


def test_questions_carry_one_token_which_is_replaced_at_once_when_it_is_refused(spot, fake, ear):
    wait_for_more(fake, ACTION, 2)
    asked = [request for request in fake.requests if "meta-data" in request.path]
    assert len({request.headers["x-aws-ec2-metadata-token"] for request in asked}) == 1
    assert {request.status for request in asked} <= {404, None}
    assert sum(TOKEN in request.text for request in fake.requests) == 1
    fake.aws.expire_tokens()
    fake.aws.interrupt()
    ear.wait()
    assert sum(TOKEN in request.text for request in fake.requests) == 2


def test_a_token_is_replaced_before_it_expires(fake, ear):
    with started(AwsSpot(ear.notice, poll_seconds=POLL, token_seconds=4)):
        fake.wait_for_requests(2, TOKEN, PATIENCE)
    assert 401 not in {request.status for request in fake.requests}


@pytest.mark.parametrize(
    ("where", "answer"),
    [
        *((REBALANCE, answer) for answer in ("", "{}", '{"noticeTime": null}')),
        (ACTION, ""),
        (ACTION, "null"),
        (ACTION, "[]"),
        (ACTION, "{}"),
        (ACTION, '{"action": "terminate"}'),
        (ACTION, '{"action": "terminate", "time": 5}'),
        (ACTION, '{"action": "terminate", "time": "soon"}'),
        (ACTION, '{"action": "dance", "time": "2030-01-01T00:00:00Z"}'),
        (ACTION, '{"action": ["terminate"], "time": "2030-01-01T00:00:00Z"}'),
        (ACTION, "[" * 60000),
    ],
    ids=lambda said: said[:50],
)
def test_an_answer_that_is_not_as_documented_is_no_notice_and_hides_none(spot, fake, ear, where, answer):
    fake.aws.set(where, answer)
    wait_for_more(fake, where)
    assert ear.notices == []
    fake.aws.interrupt()
    assert not ear.wait().hint


@pytest.mark.parametrize("body", [b"", b"two\r\nlines", "ä".encode(), b"\x07", b"x" * 2000])
def test_a_token_that_is_none_is_not_sent(spot, fake, ear, body):
    original = fake.aws.answer
    fake.aws.answer = lambda question: Reply(200, body) if "token" in question.path else original(question)
    fake.aws.expire_tokens()
    wait_for_more(fake, TOKEN)
    fake.aws.answer = original
    fake.aws.interrupt()
    ear.wait()
