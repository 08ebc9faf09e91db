"""Every private name of TensorFlow that is relied upon still exists and still means what is relied upon.

A failure here says what a new TensorFlow has changed, before any training does. What needs a cluster is in
tests/cluster/test_coordination_service.py.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_preempt.agreement.coordinator import CoordinationLost
from keras_preempt.backend import place, versions
from keras_preempt.backend.keras import data_code
from keras_preempt.backend.tensorflow import coordination, datasets, errors
from keras_preempt.backend.tensorflow.backend import BACKEND
from keras_preempt.backend.tensorflow.coordination import ServiceCoordinator
from keras_preempt.backend.versions import UnsupportedTensorFlow
from keras_preempt.checkpoint import identity
from tests.backend.changed import tensorflow_changed as _changed

METHODS = {
    "set_config_key_value": ["key", "value"],
    "get_config_key_value": ["key", "timeout_in_ms"],
    "delete_config_key_value": ["key"],
    "report_error_to_cluster": ["error_code", "error_message"],
    "get_task_states": ["job_configs"],
    "get_server_def": [],
}


def numbers() -> tf.data.Dataset:
    return tf.data.Dataset.range(8)


@pytest.mark.parametrize("method", METHODS)
def test_the_eager_context_has_the_keys_of_the_coordination_service_and_without_one_says_what_to_install(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("tensorflow.python.eager.context")
    context = module.context()
    assert hasattr(context, method), _changed(f"Context.{method} is gone")
    parameters = list(inspect.signature(getattr(context, method)).parameters)
    assert parameters == METHODS[method], _changed(f"Context.{method} takes other parameters: {parameters}")
    rest = SimpleNamespace(**{name: None for name in METHODS if name != method})
    monkeypatch.setattr(module, "context", lambda: rest)
    with pytest.raises(UnsupportedTensorFlow, match=f"{method}.*{versions.VERIFIED_TENSORFLOW[0]}"):
        ServiceCoordinator(0, 1)


def test_without_a_cluster_the_service_says_that_it_is_not_there_and_there_are_no_remote_jobs() -> None:
    with pytest.raises(CoordinationLost, match="a cluster of 2 workers without it"):
        ServiceCoordinator(0, 2)
    with pytest.raises(tf.errors.FailedPreconditionError):
        coordination._insert(coordination._context(), "keras_preempt/canary", "x")
    assert coordination.remote_jobs() == (), _changed("Context.get_server_def is set without a cluster")


HEARTBEAT = """Graph execution error:

Collective ops is aborted by: Deadline Exceeded

RPC: /tensorflow.CoordinationService/Heartbeat
The error could be from a previous operation. Restart your program to reset."""

RESTARTED = (
    "/job:worker/replica:0/task:1 unexpectedly tried to connect with a different incarnation. "
    "It has likely restarted."
)


@pytest.mark.parametrize(
    ("kind", "message", "gone", "out_of_reach"),
    [
        (tf.errors.UnavailableError, "Socket closed", True, False),
        (tf.errors.DeadlineExceededError, HEARTBEAT, True, True),
        (tf.errors.DeadlineExceededError, "the table server did not answer", False, False),
        (tf.errors.AbortedError, RESTARTED, True, False),
        (tf.errors.AbortedError, "Task /job:worker/task:1 was preempted.", False, False),
        (tf.errors.InternalError, "heartbeat timeout", False, False),
    ],
)
def test_an_error_says_that_a_worker_is_gone_under_each_of_its_names(
    kind: type[tf.errors.OpError], message: str, gone: bool, out_of_reach: bool
) -> None:
    # That TensorFlow really says so: tests/cluster/test_losses.py, with real workers.
    error = kind(None, None, message)
    assert BACKEND.errors.says_a_worker_is_gone(error) == gone
    assert BACKEND.errors.says_the_service_is_out_of_reach(error) == out_of_reach


def test_preemption_is_told_as_the_op_of_tensorflow_tells_it() -> None:
    BACKEND.errors.check_preemption(None)
    with pytest.raises(tf.errors.AbortedError, match=r"Task /job:worker/task:1 was preempted\.") as raised:
        BACKEND.errors.check_preemption("/job:worker/task:1")
    payloads = raised.value.experimental_payloads
    assert payloads == {errors.WORKER_PREEMPTION: b"/job:worker/task:1"}, _changed(
        "errors no longer take payloads as their fourth argument"
    )


def test_the_op_that_checks_for_preemption_is_still_not_linked() -> None:
    # Where it is, it is called; nobody has run that yet.
    module = importlib.import_module("tensorflow.core.distributed_runtime.preemption.gen_check_preemption_op")
    assert next(iter(inspect.signature(module.check_preemption).parameters)) == "preemption_key"
    with pytest.raises(tf.errors.NotFoundError, match="CheckPreemption"):
        module.check_preemption(preemption_key="keras_preempt/canary")


def test_where_the_op_is_linked_it_is_called_and_its_error_is_the_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def op(preemption_key: str) -> None:
        if preemption_key == place.PREEMPTION_NOTICE_KEY:
            raise tf.errors.AbortedError(None, None, "from the op")
        raise tf.errors.InternalError(None, None, "Coordination service is not enabled.")

    module = importlib.import_module("tensorflow.core.distributed_runtime.preemption.gen_check_preemption_op")
    monkeypatch.setattr(module, "check_preemption", op)
    monkeypatch.setattr(errors, "check_op", errors.check_op.__wrapped__)
    with pytest.raises(tf.errors.AbortedError, match="from the op"):
        BACKEND.errors.check_preemption(None)


def test_an_iterator_has_a_resource_that_can_be_saved_and_restored() -> None:
    iterator = iter(numbers())
    assert hasattr(iterator, "_iterator_resource"), _changed("tf.data iterators have no _iterator_resource")
    next(iterator)
    state = datasets.iterator_state(iterator)
    assert state is not None, _changed("SerializeIterator no longer saves a plain iterator")
    other = iter(numbers())
    datasets.restore_iterator(other, state)
    assert int(next(other)) == 1, _changed("DeserializeIterator no longer goes on where the state was saved")


@pytest.mark.parametrize(
    "stateful",
    [
        lambda data: data.map(lambda n: tf.py_function(lambda m: m, [n], tf.int64)),
        lambda data: data.map(lambda n: tf.random.uniform(())),
    ],
    ids=["a python function", "a stateful random op"],
)
def test_an_iterator_whose_state_would_be_incomplete_has_none(stateful: Callable[[Any], Any]) -> None:
    data = stateful(numbers())
    iterator = iter(data)
    next(iterator)
    assert datasets.iterator_state(iterator) is None, _changed(
        "external_state_policy=2 no longer refuses a pipeline with state of its own"
    )
    assert datasets.never_has_state(data)
    assert not datasets.never_has_state(numbers().shuffle(4, seed=1).map(lambda n: n + 1).batch(2))


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(ValueError, match="Was the pipeline changed"):
        datasets.restore_iterator(iter(numbers()), b"nothing")
    with pytest.raises(UnsupportedTensorFlow, match="_iterator_resource"):
        datasets.restore_iterator(object(), b"nothing")


def test_a_dataset_knows_its_inputs_and_a_shuffle_by_its_class_and_its_buffer() -> None:
    dataset = numbers().shuffle(4, seed=1).map(lambda n: n)
    (shuffle,) = dataset._inputs()
    assert type(shuffle).__name__ == "_ShuffleDataset", _changed(
        f"a shuffle is now a {type(shuffle).__name__}"
    )
    assert type(shuffle._inputs()[0]).__name__ == "_RangeDataset", _changed("datasets have other inputs")
    assert list(datasets.shuffle_buffers(numbers().repeat().shuffle(50))) == [(50, 8)], _changed(
        "_ShuffleDataset._buffer_size is gone"
    )


@pytest.mark.parametrize(("seed", "unseeded"), [(None, 1), (7, 0)])
def test_a_shuffle_knows_its_seeds(seed: int | None, unseeded: int) -> None:
    tf.random.set_seed(None)  # with one, every shuffle has a seed
    shuffle = numbers().shuffle(4, seed=seed)
    for name in ("_seed", "_seed2"):
        assert hasattr(shuffle, name), _changed(f"_ShuffleDataset.{name} is gone")
    found = [part for part in datasets.ingredients(shuffle.batch(2)) if part.seeded is False]
    assert len(found) == unseeded, _changed("a shuffle without a seed no longer has the seeds 0 and 0")


def test_a_pipeline_shows_the_operations_of_its_functions() -> None:
    tf.random.set_seed(None)
    dataset = numbers().interleave(lambda n: tf.data.Dataset.range(n).shuffle(3), num_parallel_calls=2)
    parts = {part.name: part for part in datasets.ingredients(dataset)}
    assert parts["ShuffleDataset"].seeded is False, _changed("a shuffle in a function hides its seeds")
    assert parts["ShuffleDataset"].parallel, _changed("a parallel interleave has another class")
    assert all(part.ordered for part in parts.values())


@pytest.mark.parametrize("deterministic", [None, True, False])
def test_a_dataset_knows_whether_it_keeps_the_order(deterministic: bool | None) -> None:
    several = {"num_parallel_calls": 2, "deterministic": deterministic}
    for name, dataset in {
        "map": numbers().map(lambda n: n, **several),
        "batch": numbers().batch(2, **several),
        "interleave": numbers().interleave(lambda n: tf.data.Dataset.range(n), **several),
    }.items():
        ordered = all(part.ordered for part in datasets.ingredients(dataset.prefetch(1)))
        assert ordered == (deterministic is not False), _changed(f"{name} hides whether it keeps the order")


def test_a_distributed_dataset_knows_its_pipeline_and_its_iterators_have_no_state() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    dataset = numbers().batch(2)
    distributed = strategy.experimental_distribute_dataset(dataset)
    assert datasets.pipelines_of(distributed) == [dataset], _changed("_original_dataset is gone")
    assert datasets.iterator_state(iter(distributed)) is None
    made = strategy.distribute_datasets_from_function(lambda context: numbers().batch(2))
    assert len(datasets.pipelines_of(made)) == 1, _changed("_datasets is gone")


def test_a_distributed_dataset_knows_where_it_was_made_and_where_it_is_drawn_from() -> None:
    distributed = tf.distribute.MirroredStrategy(["cpu:0"]).experimental_distribute_dataset(
        tf.data.Dataset.range(4).batch(2)
    )
    here = tf.DeviceSpec.from_string(distributed._original_dataset._variant_tensor.device)
    assert (here.job, here.task, here.device_type) == ("localhost", 0, "CPU")
    (drawn_on,) = distributed._input_workers.worker_devices
    assert tf.DeviceSpec.from_string(drawn_on).job in (None, "localhost")
    assert not datasets.is_copied(distributed), _changed("its devices have other names")
    distributed._input_workers = type(
        "Workers", (), {"worker_devices": ("/job:worker/task:1/device:CPU:0",)}
    )()
    assert datasets.is_copied(distributed)  # tests/cluster/test_tpu.py has a real one.


def test_the_state_of_a_shuffle_says_how_often_it_drew() -> None:
    dataset = numbers().shuffle(4, seed=1).batch(4)
    iterator = iter(dataset)
    next(iterator)
    state = datasets.iterator_state(iterator)
    assert state is not None
    assert b"num_random_samples" in state, _changed("a shuffle's state has no num_random_samples any more")
    assert datasets.keeps_every_shuffle(state, dataset)
    for _ in iterator:
        pass
    drained = datasets.iterator_state(iterator)
    assert drained is not None
    assert not datasets.keeps_every_shuffle(drained, dataset), _changed(
        "a drained shuffle now keeps its reshuffling: `keeps_every_shuffle` can be simplified"
    )


def test_two_shuffles_are_counted_as_two() -> None:
    dataset = numbers().shuffle(4, seed=1).map(lambda n: n).shuffle(4, seed=2)
    iterator = iter(dataset)
    for drawn in (False, True):  # The lower one is made at the first draw.
        state = datasets.iterator_state(iterator)
        assert state is not None
        assert datasets.keeps_every_shuffle(state, dataset) == drawn
        next(iterator)


@pytest.mark.parametrize(
    ("pipeline", "drawn"),
    [
        (lambda data: data.shuffle(4, seed=1).map(lambda n: n).batch(2).prefetch(1), False),
        (lambda data: data.batch(2), False),
        (lambda data: data.shuffle(4, seed=1).repeat(2), True),
        (lambda data: data.shuffle(4, seed=1).shuffle(4, seed=2), True),
    ],
    ids=["one shuffle", "no shuffle", "below a repeat", "below another"],
)
def test_shuffles_that_reshuffle_while_they_are_drawn_are_known(
    pipeline: Callable[[Any], Any], drawn: bool
) -> None:
    assert datasets.reshuffles_while_drawn(pipeline(numbers())) is drawn, _changed(
        "datasets have other class names"
    )


def test_a_kind_of_dataset_that_is_known_by_name_still_has_it() -> None:
    made = [
        numbers().map(lambda n: n),
        numbers().map(lambda n: n, num_parallel_calls=2),
        numbers().batch(2),
        numbers().batch(2, num_parallel_calls=2),
        numbers().prefetch(1),
        numbers().filter(lambda n: True),
        numbers().with_options(tf.data.Options()),
    ]
    gone = set(datasets._MADE_AT_ONCE) - {type(dataset).__name__ for dataset in made}
    assert not gone, _changed(f"{gone} have other names")


def test_the_key_of_tensorflows_own_notice_is_what_it_was() -> None:
    # Nothing in Python spells it; the C++ code does, and tests/cluster see it arrive.
    assert place.PREEMPTION_NOTICE_KEY == "TF_DEFAULT_PREEMPTION_NOTICE_KEY"


def test_the_eager_context_shows_the_functions_that_were_traced() -> None:
    context = importlib.import_module("tensorflow.python.eager.context").context()
    for method in ("list_function_names", "get_function_def"):
        assert hasattr(context, method), _changed(f"Context.{method} is gone")

    tf.random.set_seed(None)  # Else the operations below have seeds.

    def jittered(number: tf.Tensor) -> tf.Tensor:
        return tf.cast(number, tf.float32) + tf.random.uniform(())

    def scripted(number: tf.Tensor) -> tf.Tensor:
        return tf.numpy_function(lambda value: value, [number], tf.int64)

    @tf.function
    def shaken() -> tf.Tensor:
        return tf.random.normal((2,))

    @tf.function
    def stateless() -> tf.Tensor:
        return tf.random.stateless_normal((2,), (1, 2))

    def seeded(number: tf.Tensor) -> tf.Tensor:
        return tf.cast(number, tf.float32) + tf.random.uniform((), seed=1)

    made = tf.data.Dataset.from_generator(lambda: range(3), output_signature=tf.TensorSpec((), tf.int32))
    pipelines = [numbers().map(jittered), numbers().map(scripted), numbers().map(seeded), made]
    for pipeline in pipelines:
        next(iter(pipeline))
    shaken()
    stateless()
    found = datasets.hidden_sources()
    for part in (
        "RandomUniform (such as tf.random.*) in an input pipeline (jittered)",
        "Python code (tf.py_function, tf.numpy_function or a generator) in an input pipeline (scripted)",
        "RandomStandardNormal (such as tf.random.*) in the training or validation step (shaken)",
    ):
        assert any(part in source for source in found), _changed(f"{part!r} is not in {found}")
    assert not any("(stateless)" in source or "(seeded)" in source for source in found)
    of_tensorflow = [
        source for source in found if re.search(r"next_fn|finalize|flat_map|iterator_id", source)
    ]
    assert not of_tensorflow, _changed(f"functions of from_generator have other names: {of_tensorflow}")


def test_python_functions_of_a_pipeline_are_found_by_the_tokens_of_their_operations() -> None:
    def scripted(number: Any) -> Any:
        return number + np.random.randint(3)

    for call in (tf.numpy_function, tf.py_function):
        mapped = numbers().map(lambda number, call=call: call(scripted, [number], tf.int64))
        (code,) = [part.code for part in datasets.ingredients(mapped) if part.code is not None]
        where = data_code.global_draw(code)
        assert where.startswith("scripted ("), _changed(
            "script_ops._py_funcs has no functions by their tokens"
        )


def test_the_type_of_an_iterator_is_known_from_its_dataset() -> None:
    from keras_preempt.backend.tensorflow.traced_step import iterator_spec

    dataset = tf.data.Dataset.range(8).batch(2)
    assert iterator_spec(dataset) == iter(dataset)._type_spec
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    distributed = strategy.experimental_distribute_dataset(dataset)
    spec = iterator_spec(distributed)
    assert spec is not None, "a distributed dataset no longer has what its iterators' type is made of"
    assert spec == iter(distributed)._type_spec


def test_an_optimizer_counts_its_steps_in_the_type_that_tells_the_backend() -> None:
    dtype = keras.optimizers.SGD().iterations.dtype
    assert identity._BACKENDS[dtype] == "tensorflow", _changed("the type of an optimizer's iterations")


def test_what_a_gpu_needs_to_add_in_one_order_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorflow.python.framework import config  # It can also take the setting back.

    monkeypatch.delenv("TF_DETERMINISTIC_OPS", raising=False)
    assert BACKEND.unordered_sums() == "", "there is no GPU"
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    assert "enable_op_determinism" in BACKEND.unordered_sums()
    tf.config.experimental.enable_op_determinism()
    try:
        assert BACKEND.unordered_sums() == ""
    finally:
        config.disable_op_determinism()
    monkeypatch.setenv("TF_DETERMINISTIC_OPS", "1")
    assert BACKEND.unordered_sums() == ""
    monkeypatch.delenv("TF_DETERMINISTIC_OPS")
    monkeypatch.delattr(config, "is_op_determinism_enabled")
    with pytest.raises(UnsupportedTensorFlow, match="is_op_determinism_enabled"):
        BACKEND.unordered_sums()
