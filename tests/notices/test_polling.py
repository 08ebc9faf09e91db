from __future__ import annotations

from keras_preempt.notices.polling import Backoff


def waits(backoff: Backoff, count: int) -> list[float]:
    return [backoff.next() for _ in range(count)]


def test_waits_double_up_to_a_minute_and_are_not_the_same_for_all():
    for bound, wait in zip((1, 2, 4, 8, 16, 32, 60, 60, 60), waits(Backoff(), 9), strict=True):
        assert bound / 2 <= wait <= bound
    assert len({tuple(waits(Backoff(), 9)) for _ in range(5)}) == 5


def test_an_answer_makes_the_next_failure_a_first_one_and_the_waits_shorter_for_good():
    backoff = Backoff()
    waits(backoff, 9)
    backoff.reset()
    assert backoff.next() <= 1
    assert max(waits(backoff, 20)) <= 5
    assert backoff.limit == 5
