"""The operations of a traced function and of those that it calls, and the lines of Python that made them.

Verified with TensorFlow 2.16.1 to 2.21.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_preempt.backend.user_code import is_installed

_OF_THIS_PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"


def line_of(operation: Any) -> str:
    """Returns the line of the user's code that made an operation, as "train_step (train.py:34)"; empty if none did."""
    for frame in reversed(list(getattr(operation, "traceback", None) or ())):
        if not is_installed(frame.filename):
            return f"{frame.name or '<lambda>'} ({os.path.basename(frame.filename)}:{frame.lineno})"
        if frame.filename.startswith(_OF_THIS_PACKAGE) or (
            frame.name == "fit" and f"{os.sep}keras{os.sep}" in frame.filename
        ):
            return ""  # The step is traced inside fit: its caller has not written the operation.
    return ""


def operations(graph: Any, seen: set[str] | None = None) -> Iterator[tf.Operation]:
    """Yields the operations of the graph of a `tf.function` and of the functions that it calls, each function once."""
    seen = set() if seen is None else seen
    for operation in graph.get_operations():
        yield operation
        for name in called_by(operation.node_def):
            if name not in seen:
                seen.add(name)
                if (inner := graph_of(graph, name)) is not None:
                    yield from operations(inner, seen)


def resource_of(operation: tf.Operation) -> Any:
    """Returns the resource that the caller of a function passes as an operation's first input.

    None if the function makes it itself, or if each caller passes another one.
    """
    tensor = operation.inputs[0]
    while (graph := getattr(tensor, "graph", None)) is not None:
        outer = next((outer for outer, inner in getattr(graph, "captures", ()) if inner is tensor), None)
        if outer is None:
            return None
        tensor = outer
    return tensor


def attribute_of(operation: tf.Operation, name: str) -> Any:
    """Returns an attribute of an operation; None if it has none of that name."""
    try:
        return operation.get_attr(name)
    except ValueError:
        return None


def called_by(node: Any) -> Iterator[str]:
    """Yields the names of the functions that a node of a graph calls."""
    for attribute in node.attr.values():
        for function in [attribute.func] if attribute.HasField("func") else attribute.list.func:
            yield function.name


def graph_of(graph: Any, name: str) -> Any:
    """Returns the graph of a function that a graph calls; None if it has no Python graph, such as a gradient's."""
    find = getattr(graph, "_get_function", None)
    return None if find is None else getattr(find(name), "graph", None)
