"""The operations of a traced function and of the functions that it calls, each with the Python line that made it.

Verified with TensorFlow 2.16.1 to 2.21.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_preempt.backend.user_code import is_installed

_OF_THIS_PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"
_DEEPEST = 100  # Functions that call functions; a recursive one has been seen by then.


@dataclass(frozen=True)
class GraphOperation:
    """One operation of a traced function.

    Attributes:
        kind: What TensorFlow calls it, such as "RandomUniform".
        name: Its name in the graph, which begins with the names of the layers it is in.
        operation: The `tf.Operation` itself.
    """

    kind: str
    name: str
    operation: Any

    def attribute(self, name: str) -> Any:
        """Returns an attribute of the operation; None if it has none of the name."""
        try:
            return self.operation.get_attr(name)
        except ValueError:
            return None

    @property
    def python(self) -> str:
        """The line of the user's own code that made it, as "train_step (train.py:34)"; empty if there is none."""
        return line_of(self.operation)


def line_of(operation: Any) -> str:
    """Returns the line of the user's own code that made a `tf.Operation`; see `GraphOperation.python`."""
    for frame in reversed(list(getattr(operation, "traceback", None) or ())):
        if not is_installed(frame.filename):
            return f"{frame.name or '<lambda>'} ({os.path.basename(frame.filename)}:{frame.lineno})"
        if frame.filename.startswith(_OF_THIS_PACKAGE) or (
            frame.name == "fit" and f"{os.sep}keras{os.sep}" in frame.filename
        ):
            return ""  # Whoever calls fit, in which the step is traced, has not written what it runs.
    return ""


def operations(graph: Any) -> Iterator[GraphOperation]:
    """Yields the operations of a graph and of the functions that it calls, each function once.

    Args:
        graph: The graph of a traced `tf.function`.
    """
    yield from _operations(graph, set(), _DEEPEST)


def resource_of(operation: GraphOperation) -> Any:
    """Returns the resource that an operation's first input is in the caller of the function.

    None if the function makes it itself, or gets another one from each caller.
    """
    tensor = operation.operation.inputs[0]
    while (graph := getattr(tensor, "graph", None)) is not None:
        outer = next((outer for outer, inner in getattr(graph, "captures", ()) if inner is tensor), None)
        if outer is None:
            return None
        tensor = outer
    return tensor


def _operations(graph: Any, seen: set[str], depth: int) -> Iterator[GraphOperation]:
    for operation in graph.get_operations():
        yield GraphOperation(operation.type, operation.name, operation)
        for name in called_by(operation.node_def):
            if name in seen or depth == 0:
                continue
            seen.add(name)
            inner = graph_of(graph, name)
            if inner is not None:
                yield from _operations(inner, seen, depth - 1)


def called_by(node: Any) -> Iterator[str]:
    """Yields the names of the functions that a node of a graph calls."""
    for attribute in node.attr.values():
        for function in [attribute.func] if attribute.HasField("func") else attribute.list.func:
            yield function.name


def graph_of(graph: Any, name: str) -> Any:
    """Returns the graph of a function that a graph calls; None if it has no Python graph, such as a gradient's."""
    find = getattr(graph, "_get_function", None)
    return None if find is None else getattr(find(name), "graph", None)
