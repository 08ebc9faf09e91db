"""The private names of TensorFlow that this package uses, and nothing else does.

Verified on the versions in `VERIFIED`. Each use checks what it relies on at first use and fails with
`UnsupportedTensorFlow`, which says what to do. tests/backend/tensorflow/test_canaries.py has one canary per name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from keras_preempt.backend.requirements import NEWEST_TENSORFLOW, OLDEST_TENSORFLOW

VERIFIED = (OLDEST_TENSORFLOW, "2.17.1", NEWEST_TENSORFLOW)

PREEMPTION_NOTICE_KEY = "TF_DEFAULT_PREEMPTION_NOTICE_KEY"
"""Where TensorFlow's own SIGTERM handler and its TPU runtime leave "/job:worker/task:N"."""

_IGNORE_STATE = 1  # tf.data's ExternalStatePolicy.IGNORE

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

    def tasks_gone(self, jobs: Sequence[tuple[str, int]]) -> list[bool]:
        """For each task of these jobs, in their order, whether it has failed or cannot be reached.

        That is so ten seconds after the death of one (the heartbeat's timeout), and at once for the one that hosts
        the service, which is taken for the first. Blocks for as long as that one is frozen.
        """
        number = sum(tasks for _, tasks in jobs)
        try:
            states = self._context.get_task_states(list(jobs))
        except tf.errors.DeadlineExceededError:
            return [False] * number
        except tf.errors.OpError:
            return [task == 0 for task in range(number)]
        return [state is not None for state in states]


_LOST = re.compile(
    r"/tensorflow\.CoordinationService/|different incarnation|heartbeat timeout|stopped sending heartbeats"
)
"""What TensorFlow's own texts say when a worker cannot be reached, was restarted alone, or was given up by the others.

Seen in 2.21: "Collective ops is aborted by: Deadline Exceeded / RPC: /tensorflow.CoordinationService/Heartbeat" where
worker 0 does not answer; "unexpectedly tried to connect with a different incarnation. It has likely restarted."; and,
at a worker that comes back after its peers gave it up, "Unexpected heartbeat request from an already-in-error task".
"""


def says_a_worker_is_gone(error: tf.errors.OpError) -> bool:
    """Whether an error of TensorFlow's says that another worker is gone, under whichever of its codes."""
    if isinstance(error, (tf.errors.AbortedError, tf.errors.DeadlineExceededError)):
        return _LOST.search(str(error.message)) is not None
    return isinstance(error, tf.errors.UnavailableError)


def says_the_service_is_out_of_reach(error: tf.errors.OpError) -> bool:
    """Whether an error says that the coordination service does not answer: then any further call may wait for ever."""
    return isinstance(error, tf.errors.DeadlineExceededError) and says_a_worker_is_gone(error)


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
    op = _linked_check_op()
    if op is not None:
        op(preemption_key=PREEMPTION_NOTICE_KEY)
    if seen is not None:
        raise tf.errors.AbortedError(
            None, None, f"Task {seen} was preempted.", {WORKER_PREEMPTION: seen.encode()}
        )


def check_preemption_is_linked() -> bool:
    """Whether this TensorFlow has the op CheckPreemption."""
    return _linked_check_op() is not None


def task_preempted_by(error: BaseException | None) -> str | None:
    """The task of which an error says that it was preempted, such as "/job:worker/task:1"; None for another error."""
    if not isinstance(error, tf.errors.AbortedError):
        return None
    task = error.experimental_payloads.get(WORKER_PREEMPTION)
    return None if task is None else bytes(task).decode(errors="replace")


def _linked_check_op() -> Callable[..., Any] | None:
    if not _check_op:
        _check_op.append(_find_check_op())
    return _check_op[0]


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


def never_has_state(dataset: Any) -> bool:
    """Whether `iterator_state` is known to be None for every iterator of a pipeline.

    TensorFlow would say so too, with a warning in the log at each of them that reads like an error.
    """
    parts = (
        part.name for pipeline in pipelines_of(dataset) for part in ingredients(pipeline) if part.function
    )
    return any(_HIDDEN.fullmatch(name) and not name.endswith("Stateless") for name in parts)


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


def _shuffles_of(dataset: Any) -> Iterator[Any]:
    if not hasattr(dataset, "_inputs"):
        raise _unsupported("_inputs() on tf.data datasets")
    if type(dataset).__name__ == "_ShuffleDataset":
        if not hasattr(dataset, "_seed2"):
            raise _unsupported("_seed and _seed2 on shuffled datasets")
        yield dataset
    for upstream in dataset._inputs():
        yield from _shuffles_of(upstream)


@dataclass(frozen=True)
class Ingredient:
    """A dataset of an input pipeline, or an operation of a function in it.

    Attributes:
        name: TensorFlow's name for it, such as "ShuffleDataset", "RandomUniform" or "EagerPyFunc".
        function: The user's function that it stands in; empty for a dataset of the pipeline itself.
        seeded: Whether it has a seed; None if it is given none.
        ordered: Whether it hands out its elements in a fixed order.
        parallel: Whether the function is called for several elements at a time.
    """

    name: str
    function: str
    seeded: bool | None
    ordered: bool
    parallel: bool = False


def pipelines_of(distributed: Any) -> list[Any]:
    """The tf.data pipelines of what Keras iterates over, before a strategy has changed them; empty if unknown."""
    if isinstance(distributed, tf.data.Dataset):
        return [distributed]
    if isinstance(original := getattr(distributed, "_original_dataset", None), tf.data.Dataset):
        return [original]
    return [each for each in getattr(distributed, "_datasets", ()) if isinstance(each, tf.data.Dataset)]


def ingredients(dataset: Any) -> Iterator[Ingredient]:
    """Everything that a pipeline is made of, with what stands in its functions, however deep."""
    if not hasattr(dataset, "_inputs") or not hasattr(dataset, "_functions"):
        raise _unsupported("_inputs() and _functions() on tf.data datasets")
    seeds = [getattr(dataset, name, None) for name in ("_seed", "_seed2")]
    seeded = None if seeds[0] is None else any(tf.get_static_value(seed) != 0 for seed in seeds)
    in_order = dataset.options().deterministic is not False and _is_deterministic(dataset)
    yield Ingredient(type(dataset).__name__.removeprefix("_"), "", seeded, in_order)
    for wrapper in dataset._functions():
        yield from _operations(wrapper.function, type(dataset).__name__.startswith("_Parallel"))
    for upstream in dataset._inputs():
        yield from ingredients(upstream)


def _is_deterministic(dataset: Any) -> bool:
    """Whether a dataset was not told `deterministic=False`."""
    if hasattr(dataset, "_deterministic"):
        return bool(dataset._deterministic != "false")
    if not {"deterministic", "sloppy"} & set(inspect.signature(type(dataset).__init__).parameters):
        return True
    # An interleave does not keep what it was told. It is rarely made from much: names of files, numbers of shards.
    variant = tf.data.experimental.to_variant(dataset)
    try:
        serialized = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=_IGNORE_STATE)
    except tf.errors.OpError:
        return False  # It cannot be told, and a warning too many is better than one too few.
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    return all(node.attr["deterministic"].s != b"false" for node in graph.node)


def _operations(function: Any, parallel: bool) -> Iterator[Ingredient]:
    graph = function.graph.as_graph_def()
    traced = re.sub(r"^__inference_(?:Dataset_[a-z]+_)?|_\d+$", "", str(function.name.decode()))
    for nodes in (graph.node, *(inner.node_def for inner in graph.library.function)):
        constants = {
            node.name: tf.make_ndarray(node.attr["value"].tensor)
            for node in nodes
            if node.op == "Const" and len(node.attr["value"].tensor.tensor_shape.dim) == 0
        }
        for node in nodes:
            if node.op.startswith(("ShuffleDataset", "RandomDataset")):
                first = 2 if node.op.startswith("Shuffle") else 0
                names = [name.partition(":")[0] for name in node.input[first : first + 2]]
                seeded: bool | None = any(constants.get(name, 1) != 0 for name in names)
            elif "seed" in node.attr and "seed2" in node.attr:
                seeded = bool(node.attr["seed"].i or node.attr["seed2"].i)
            else:
                seeded = None
            name = re.sub(r"(?<=Dataset)V\d$", "", node.op)
            ordered = node.attr["deterministic"].s != b"false"
            yield Ingredient(name, traced, seeded, ordered, parallel)


def shuffle_buffers(dataset: Any) -> Iterator[tuple[int, int | None]]:
    """How many elements the shuffles of a pipeline hold, and how many bytes one of them has; None if unknown."""
    for shuffle in _shuffles_of(dataset):
        (upstream,) = shuffle._inputs()
        elements = int(tf.get_static_value(shuffle._buffer_size))
        if (length := int(upstream.cardinality())) >= 0:
            elements = min(elements, length) if elements >= 0 else length
        yield elements, _element_bytes(upstream)


def _element_bytes(dataset: Any) -> int | None:
    tensors = getattr(dataset, "_tensors", None)
    if type(dataset).__name__ == "_TensorSliceDataset" and tensors:
        rows = max(1, int(tensors[0].shape[0] or 1))
        return sum(_bytes_of(tensor) for tensor in tensors) // rows
    total = 0
    for spec in tf.nest.flatten(dataset.element_spec):
        known = isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()
        if not known or spec.dtype in (tf.string, tf.variant, tf.resource):
            return None
        total += int(spec.shape.num_elements()) * int(spec.dtype.size)
    return total


def _bytes_of(tensor: Any) -> int:
    if tensor.dtype == tf.string:
        return int(tf.reduce_sum(tf.strings.length(tensor)))
    return int(tf.size(tensor)) * int(tensor.dtype.size)


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


_HIDDEN = re.compile(
    r"(?:Eager)?PyFunc(?:Stateless)?|RandomUniform(?:Int)?|RandomStandardNormal|RandomShuffle|RandomGamma(?:V\d)?|"
    r"RandomPoisson(?:V\d)?|(?:Parameterized)?TruncatedNormal|Multinomial"
)
"""Operations that draw from something that no variable holds: Python code, or a generator inside the operation."""


def hidden_sources() -> list[str]:
    """What the functions that TensorFlow has traced in this process draw from a state that nobody can save.

    Random operations of an input pipeline that have a seed are left out: a replay of the pipeline repeats them.

    Returns:
        One text each, such as "tf.numpy_function in an input pipeline (augment)"; empty if nothing was found, or
        where this TensorFlow does not show its functions.
    """
    from tensorflow.python.eager import context

    current = context.context()
    if not hasattr(current, "list_function_names") or not hasattr(current, "get_function_def"):
        return []
    found = set()
    for raw in current.list_function_names():
        name = raw.decode() if isinstance(raw, bytes) else str(raw)
        if not name.startswith("__inference_"):  # Not of the program, such as one eager operation.
            continue
        in_pipeline = name.startswith("__inference_Dataset_")
        traced = re.sub(r"_\d+$", "", name.removeprefix("__inference_"))
        where = "an input pipeline" if in_pipeline else "the training or validation step"
        inner = re.sub(r"^Dataset_[a-z]+_", "", traced) if in_pipeline else traced
        for node in current.get_function_def(name).node_def:
            repeatable = in_pipeline and bool(node.attr["seed"].i or node.attr["seed2"].i)
            if _HIDDEN.fullmatch(node.op) and not repeatable:
                found.add(f"{_spelt(node.op)} in {where} ({inner})")
    return sorted(found)


def _spelt(operation: str) -> str:
    if "PyFunc" in operation:
        return "Python code (tf.py_function, tf.numpy_function or a generator)"
    return f"the stateful random operation {operation} (such as tf.random.*)"
