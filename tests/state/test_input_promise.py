"""What a user is told about the input before the first step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import tensorflow as tf

from keras_preempt.state.inputs import promise

pytestmark = pytest.mark.usefixtures("fresh_keras")

DATA = tf.data.Dataset.range(8)


def feed(dataset: Any, *, distributed: bool, batches: int | None) -> Any:
    return cast(
        Any,
        SimpleNamespace(undistributed=dataset, dataset=object() if distributed else dataset, batches=batches),
    )


@pytest.mark.parametrize("distributed", [False, True])
def test_a_seeded_pipeline_of_known_length_is_promised_to_be_exact(distributed: bool) -> None:
    assert promise(feed(DATA.shuffle(8, seed=1), distributed=distributed, batches=8))[0]


@pytest.mark.parametrize("distributed", [False, True])
def test_a_shuffle_without_a_seed_is_never_promised_to_be_exact(distributed: bool) -> None:
    exact, why = promise(feed(DATA.shuffle(8).batch(2), distributed=distributed, batches=4))
    assert not exact
    assert "seed" in why


def test_data_of_unknown_length_is_promised_to_be_exact_on_one_device_only() -> None:
    unknown = DATA.filter(lambda x: True)
    assert promise(feed(unknown, distributed=False, batches=None))[0]
    exact, why = promise(feed(unknown, distributed=True, batches=None))
    assert not exact
    assert "assert_cardinality" in why
