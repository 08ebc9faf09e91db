"""What a tf.data pipeline is made of, and what in this process draws from states that cannot be saved.

Verified with TensorFlow 2.16.1 to 2.21.0.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_preempt.backend.operations import Does, Ingredient
from keras_preempt.backend.tensorflow.graph_operations import called_by, graph_of, line_of
from keras_preempt.backend.tensorflow.random_operations import does, without_version
from keras_preempt.backend.versions import UnsupportedTensorFlow

IGNORE_STATE = 1
"""tf.data's ExternalStatePolicy.IGNORE: other state than that of the pipeline is left out."""

_PARALLEL = re.compile(r"\w*Parallel(?:Map|Interleave|Filter)\w*|\w*MapAndBatch\w*")
"""Datasets that call their function for several elements at a time."""

_FIRST_SEED = {"RandomDataset": 0, "ExperimentalRandomDataset": 0, "GlobalShuffleDataset": 1}
"""Which input of a dataset is the first of its two seeds, if it is not the third one."""

_OF_TENSORFLOW = re.compile(
    r"(?:generator_)?(?:flat_map_fn|next_fn|finalize_fn|py_func|map_fn)|get_iterator_id_fn"
)
"""Functions that TensorFlow writes around the user's own, such as those of `Dataset.from_generator`."""


def ingredients(dataset: Any) -> Iterator[Ingredient]:
    """Yields everything that a pipeline is made of, including the operations of its functions at any depth."""
    if not hasattr(dataset, "_inputs") or not hasattr(dataset, "_functions"):
        raise UnsupportedTensorFlow("_inputs() and _functions() on tf.data datasets")
    seeds = [getattr(dataset, name, None) for name in ("_seed", "_seed2")]
    seeded = None if seeds[0] is None else any(tf.get_static_value(seed) != 0 for seed in seeds)
    in_order = dataset.options().deterministic is not False and _is_deterministic(dataset)
    name = type(dataset).__name__.removeprefix("_")
    done = does(name, lambda attribute: getattr(dataset, f"_{attribute}", None))
    yield Ingredient(name, "", done, seeded, in_order)
    for wrapper in dataset._functions():
        yield from _operations(wrapper.function, bool(_PARALLEL.fullmatch(name)))
    for upstream in dataset._inputs():
        yield from ingredients(upstream)


def _is_deterministic(dataset: Any) -> bool:
    """Whether a dataset was made without `deterministic=False`."""
    if hasattr(dataset, "_deterministic"):
        return bool(dataset._deterministic != "false")
    if not {"deterministic", "sloppy"} & set(inspect.signature(type(dataset).__init__).parameters):
        return True
    # An interleave does not keep that argument. Its input is usually small: names of files, numbers of shards.
    variant = tf.data.experimental.to_variant(dataset)
    try:
        serialized = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=IGNORE_STATE)
    except tf.errors.OpError:
        return False  # Unknown: rather one warning too many.
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    return all(node.attr["deterministic"].s != b"false" for node in graph.node)


def _operations(function: Any, parallel: bool) -> Iterator[Ingredient]:
    """Yields the operations of a function of a pipeline, and of those that it calls."""
    graph = function.graph.as_graph_def()
    traced = re.sub(r"^__inference_(?:Dataset_[a-z]+_)?|_\d+$", "", str(function.name.decode()))
    library = {inner.signature.name: inner.node_def for inner in graph.library.function}
    seen: set[tuple[str, bool]] = set()
    left = [(graph.node, function.graph, parallel)]
    while left:
        nodes, in_python, parallel = left.pop()
        yield from _operations_of(nodes, in_python, traced, parallel)
        for node in nodes:
            for name in called_by(node):
                called = name, parallel or bool(_PARALLEL.fullmatch(node.op))
                if name in library and called not in seen:
                    seen.add(called)
                    inner = None if in_python is None else graph_of(in_python, name)
                    left.append((library[name], inner, called[1]))


def _operations_of(nodes: Any, in_python: Any, traced: str, parallel: bool) -> Iterator[Ingredient]:
    from tensorflow.python.ops import script_ops

    constants = {
        node.name: tf.make_ndarray(node.attr["value"].tensor)
        for node in nodes
        if node.op == "Const" and len(node.attr["value"].tensor.tensor_shape.dim) == 0
    }
    for node in nodes:
        done = does(node.op, functools.partial(_attribute, node))
        if done is Does.ORDER and "seed" not in node.attr:
            first = _FIRST_SEED.get(without_version(node.op), 2)
            names = [name.partition(":")[0] for name in node.input[first : first + 2]]
            seeded: bool | None = any(constants.get(name, 1) != 0 for name in names)
        elif "seed" in node.attr and "seed2" in node.attr:
            seeded = bool(node.attr["seed"].i or node.attr["seed2"].i)
        else:
            seeded = None
        ordered = node.attr["deterministic"].s != b"false"
        line, code = "", None
        if done is not None and in_python is not None:
            with contextlib.suppress(KeyError, ValueError):  # TensorFlow does not know it.
                line = line_of(in_python.get_operation_by_name(node.name))
        if done is Does.PYTHON:
            find = getattr(getattr(script_ops, "_py_funcs", None), "get", None)
            # As `tf.py_function` and `tf.numpy_function` have registered it.
            code = None if find is None else find(node.attr["token"].s.decode())
        yield Ingredient(without_version(node.op), line or traced, done, seeded, ordered, parallel, code)


def _attribute(node: Any, name: str) -> Any:
    kind = node.attr[name].WhichOneof("value") if name in node.attr else None
    return None if kind is None else getattr(node.attr[name], kind)


def hidden_sources() -> list[str]:
    """Returns, in words, what draws from states that cannot be saved in the functions that this process has traced.

    Such as "Python code (...) in an input pipeline (augment)"; nothing if this TensorFlow does not list its functions.
    Random operations with a seed in an input pipeline are left out, since a replay repeats them.
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
        inner = re.sub(r"^Dataset_(?:from_generator|[a-z]+)_", "", traced) if in_pipeline else traced
        named = "" if _OF_TENSORFLOW.fullmatch(inner) else f" ({inner})"
        for node in current.get_function_def(name).node_def:
            repeatable = in_pipeline and bool(node.attr["seed"].i or node.attr["seed2"].i)
            done = does(node.op, functools.partial(_attribute, node))
            if done in (Does.DRAW, Does.PYTHON) and not repeatable:
                what = f"the stateful random operation {node.op} (such as tf.random.*)"
                if done is Does.PYTHON:
                    what = "Python code (tf.py_function, tf.numpy_function or a generator)"
                found.add(f"{what} in {where}{named}")
    return sorted(found)
