"""Variables of one program are found again under the names that Keras gave them in another process; others are not."""

from __future__ import annotations

import pytest

from keras_preempt.state.variable_names import named_alike

NET = ["net/dense/kernel", "net/dense_1/kernel", "net/norm/beta"]


def test_equal_names_are_themselves_whatever_the_order() -> None:
    assert named_alike(NET, NET[::-1]) == {name: name for name in NET}


def test_numbers_that_keras_has_counted_on_are_taken_back() -> None:
    again = ["net_2/dense_4/kernel", "net_2/dense_5/kernel", "net_2/norm_1/beta"]
    assert named_alike(again, NET) == dict(zip(again, NET, strict=True))
    assert named_alike(NET, again) == dict(zip(NET, again, strict=True))


def test_a_shift_onto_names_that_are_there_too_is_not_taken_for_the_same_layer() -> None:
    again = ["net/dense_1/kernel", "net/dense_2/kernel", "net/norm/beta"]
    assert named_alike(again, NET) == dict(zip(again, NET, strict=True))


def test_a_model_that_is_made_of_its_description_lacks_its_own_name() -> None:
    below = ["dense/kernel", "dense_1/kernel", "norm/beta"]
    assert named_alike(below, NET) == dict(zip(below, NET, strict=True))
    counted = ["dense_3/kernel", "dense_4/kernel", "norm_1/beta"]
    assert named_alike(counted, NET) == dict(zip(counted, NET, strict=True))
    assert named_alike(NET, counted) == dict(zip(NET, counted, strict=True))


def test_names_that_only_end_alike_are_matched_where_that_leaves_no_choice() -> None:
    deep = ["net/encoder/dense/kernel", "net/decoder/norm/beta"]
    assert named_alike(["dense/kernel", "norm/beta"], deep) == {"dense/kernel": deep[0], "norm/beta": deep[1]}
    twice = ["net/encoder/dense/kernel", "net/decoder/dense/kernel"]
    assert named_alike(["dense/kernel", "dense/bias"], twice) is None


@pytest.mark.parametrize(
    "others",
    [
        ["net/dense/kernel", "net/dense_2/kernel", "net/norm/beta"],  # one is counted on, one is not
        ["net/conv/kernel", "net/dense_1/kernel", "net/norm/beta"],
        ["net/dense/kernel", "net/dense_1/kernel"],
        [*NET, "net/dense_2/kernel"],
        ["net/dense/kernel", "net/dense_1/bias", "net/norm/beta"],
        [],
    ],
)
def test_another_model_is_not_taken_for_it(others: list[str]) -> None:
    assert named_alike(others, NET) is None


def test_a_number_that_is_part_of_a_name_stays() -> None:
    names = ["block_00/dense/kernel", "block_01/dense/kernel"]
    again = ["block_00/dense_7/kernel", "block_01/dense_7/kernel"]
    assert named_alike(again, names) == dict(zip(again, names, strict=True))
