"""The private names of TensorFlow that this package uses, and nothing else does.

Verified on TensorFlow 2.21.0. Each use checks what it relies on at first use and fails with
`UnsupportedTensorFlow`, which says what to do. tests/test_tensorflow_canaries.py has one canary per name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

VERIFIED = ("2.21.0",)

PREEMPTION_NOTICE_KEY = "TF_DEFAULT_PREEMPTION_NOTICE_KEY"
"""Where TensorFlow's own SIGTERM handler and its TPU runtime leave "/job:worker/task:N"."""

DEADLINE_ERROR = tf.errors.DeadlineExceededError
SERVICE_ERRORS: tuple[type[Exception], ...] = (tf.errors.OpError,)


class UnsupportedTensorFlow(ImportError):
    """The installed TensorFlow lacks a private name, or has changed one, that this package needs."""


def _unsupported(what: str) -> UnsupportedTensorFlow:
    return UnsupportedTensorFlow(
        f"Expected TensorFlow to have {what}. Received: TensorFlow {tf.__version__}. keras-preempt was "
        f"verified on TensorFlow {', '.join(VERIFIED)}: install one of these, or a newer keras-preempt."
    )


def _context() -> Any:
    try:
        from tensorflow.python.eager import context
    except ImportError as error:
        raise _unsupported("the module tensorflow.python.eager.context") from error
    current = context.context()
    for method in (
        "set_config_key_value",
        "get_config_key_value",
        "delete_config_key_value",
        "report_error_to_cluster",
        "get_task_states",
        "get_server_def",
    ):
        if not hasattr(current, method):
            raise _unsupported(f"the method {method} on its eager context")
    return current


class CoordinationKeys:
    """The write-once keys of TensorFlow's coordination service, as it offers them to Python.

    Every call may raise one of `SERVICE_ERRORS`; without a coordination service in this process that is
    FailedPreconditionError.
    """

    def __init__(self) -> None:
        self._context = _context()

    def available(self) -> bool:
        """Whether this process takes part in a coordination service."""
        try:
            self._context.delete_config_key_value("keras_preempt/probe")
        except tf.errors.FailedPreconditionError:
            return False
        except tf.errors.NotFoundError:
            pass
        return True

    def insert(self, key: str, value: str) -> bool:
        """Inserts `key`. Returns False if it is there already; the service never overwrites."""
        try:
            self._context.set_config_key_value(key, value)
        except tf.errors.AlreadyExistsError:
            return False
        return True

    def get(self, key: str, timeout: float | None) -> str:
        """Blocks for `key`, with the GIL released. `timeout` in seconds, None for no limit.

        Raises:
            tf.errors.DeadlineExceededError: The key did not appear in time. The request stays pending in
                the service for ever, so this must be rare.
        """
        milliseconds = 0 if timeout is None else max(1, round(timeout * 1000))
        return str(self._context.get_config_key_value(key, milliseconds))

    def delete(self, prefix: str) -> None:
        """Deletes `prefix` and all that is under `prefix/`."""
        try:
            self._context.delete_config_key_value(prefix)
        except tf.errors.NotFoundError:
            return

    def report_error(self, message: str, code: int = tf.errors.ABORTED) -> None:
        """Puts every member's agent, and so its collectives, into an error that says `message`."""
        self._context.report_error_to_cluster(code, message)

    def are_gone(self, jobs: Sequence[tuple[str, int]]) -> bool:
        """Whether the tasks of these jobs are gone: each is in an error, or the one that hosts the service left.

        Args:
            jobs: Names of jobs, each with the number of its tasks.
        """
        try:
            states = self._context.get_task_states(list(jobs))
        except tf.errors.DeadlineExceededError:
            return False
        except tf.errors.OpError:
            return True
        return all(state is not None for state in states)


def remote_jobs() -> tuple[tuple[str, int], ...]:
    """The jobs that this process was connected to by `tf.config.experimental_connect_to_cluster`.

    Returns:
        Their names, each with the number of its tasks; nothing in a process that runs all operations itself, as a
        worker of MultiWorkerMirroredStrategy does.
    """
    server = _context().get_server_def()
    if server is None:
        return ()
    return tuple((str(job.name), len(job.tasks)) for job in server.cluster.job if job.name != server.job_name)


WORKER_PREEMPTION = b"type.googleapis.com/tensorflow.distributed_runtime.WorkerPreemption"
"""Under which payload of an AbortedError TensorFlow says which task was preempted."""

_check_op: list[Callable[..., Any] | None] = []
"""TensorFlow's op, None where it is not linked; empty until that is known."""


def check_preemption(seen: str | None) -> None:
    """Raises what TensorFlow's op CheckPreemption raises once a worker was preempted.

    The op, which also ends what runs asynchronously on remote workers, is called where it is linked; in the public
    builds of TensorFlow it is not.

    Args:
        seen: What `PREEMPTION_NOTICE_KEY` holds, such as "/job:worker/task:1"; None while it is not there.

    Raises:
        tf.errors.AbortedError: With the payload `WORKER_PREEMPTION`.
    """
    if not _check_op:
        _check_op.append(_find_check_op())
    if _check_op[0] is not None:
        _check_op[0](preemption_key=PREEMPTION_NOTICE_KEY)
    if seen is not None:
        raise tf.errors.AbortedError(
            None, None, f"Task {seen} was preempted.", {WORKER_PREEMPTION: seen.encode()}
        )


def _find_check_op() -> Callable[..., Any] | None:
    try:
        from tensorflow.core.distributed_runtime.preemption import gen_check_preemption_op
    except ImportError:
        return None
    op: Callable[..., Any] = gen_check_preemption_op.check_preemption
    try:
        op(preemption_key="keras_preempt/probe")
    except (tf.errors.NotFoundError, tf.errors.UnimplementedError):
        return None
    except tf.errors.OpError:
        pass  # It is there, and the coordination service is not.
    return op


def iterator_state(iterator: Any) -> bytes | None:
    """The position of a plain tf.data iterator, with the reshuffle sequence of the epochs to come.

    Returns:
        Bytes for `restore_iterator`, or None where TensorFlow cannot save this iterator: one that a
        distribution strategy made, or a pipeline with a Python function or a stateful random op in it.
    """
    resource = getattr(iterator, "_iterator_resource", None)
    if resource is None or not isinstance(iterator, tf.data.Iterator):
        return None
    # 2: fail where an op of the pipeline keeps state that would not be saved.
    try:
        state = tf.raw_ops.SerializeIterator(resource_handle=resource, external_state_policy=2)
    except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError):
        return None
    return bytes(tf.io.serialize_tensor(state).numpy())


def keeps_every_shuffle(state: bytes, dataset: Any) -> bool:
    """Whether an iterator's state holds the reshuffling of the epochs to come.

    It does only until a shuffle has handed out its last element, which under a prefetch is before the last
    batch is drawn: then TensorFlow has dropped that part of the iterator.
    """
    return len(re.findall(rb"@@num_random_samples(?:@@|[^A-Za-z_])", state)) >= sum(
        1 for _ in _shuffles_of(dataset)
    )


_MADE_AT_ONCE = (
    "_BatchDataset",
    "_FilterDataset",
    "_MapDataset",
    "_OptionsDataset",
    "_ParallelBatchDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
)
"""Datasets whose iterators make the iterator of their input when they are made themselves, and only then."""


def reshuffles_while_drawn(dataset: Any) -> bool:
    """Whether drawing batches, and not only making an iterator, advances the reshuffling of a pipeline.

    So it is with a shuffle below a repetition, or below another shuffle, which makes the iterator of its
    input at the first draw. Where this is not known to be otherwise, it is said to be so.
    """
    while type(dataset).__name__ in _MADE_AT_ONCE:
        (dataset,) = dataset._inputs()
    if type(dataset).__name__ == "_ShuffleDataset":
        (dataset,) = dataset._inputs()
    return any(True for _ in _shuffles_of(dataset))


_KEEPS_BATCHES = (
    "CacheDataset",
    "_MapDataset",
    "_OptionsDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
    "_RepeatDataset",
    "_ShuffleDataset",
    "_SkipDataset",
    "_TakeDataset",
)
"""Datasets that hand on the batches of their input, one for one; a map is taken to be of this kind."""


def batch_size(dataset: Any) -> int | None:
    """How many samples a full batch of a pipeline holds, as TensorFlow sees when it cuts batches for replicas.

    Returns:
        None where it cannot be seen.
    """
    while True:
        found = int(tf.raw_ops.ComputeBatchSize(input_dataset=tf.data.experimental.to_variant(dataset)))
        if found > 0:
            return found
        if type(dataset).__name__ not in _KEEPS_BATCHES:
            return None
        (dataset,) = dataset._inputs()


def unseeded_shuffles(dataset: Any) -> int:
    """How many shuffles of a pipeline draw their order from nowhere, so that no restart can repeat it."""
    return sum(
        1
        for shuffle in _shuffles_of(dataset)
        if not int(tf.get_static_value(shuffle._seed)) and not int(tf.get_static_value(shuffle._seed2))
    )


def _shuffles_of(dataset: Any) -> Iterator[Any]:
    if not hasattr(dataset, "_inputs"):
        raise _unsupported("_inputs() on tf.data datasets")
    if type(dataset).__name__ == "_ShuffleDataset":
        if not hasattr(dataset, "_seed2"):
            raise _unsupported("_seed and _seed2 on shuffled datasets")
        yield dataset
    for upstream in dataset._inputs():
        yield from _shuffles_of(upstream)


def restore_iterator(iterator: Any, state: bytes) -> None:
    """Puts a new iterator of the same dataset where `iterator_state` was taken.

    Raises:
        UnsupportedTensorFlow: The iterator has no resource to restore into.
        ValueError: The state does not fit the dataset.
    """
    resource = getattr(iterator, "_iterator_resource", None)
    if resource is None:
        raise _unsupported("_iterator_resource on tf.data iterators")
    try:
        variant = tf.io.parse_tensor(state, tf.variant)
        tf.raw_ops.DeserializeIterator(resource_handle=resource, serialized=variant)
    except tf.errors.OpError as error:
        raise ValueError(
            "Expected the saved position of this input pipeline. Received: one that TensorFlow cannot "
            f"restore into it ({error.message}). Was the pipeline changed since the checkpoint was written?"
        ) from error
