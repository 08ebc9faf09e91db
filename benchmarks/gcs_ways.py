"""The ways to save a state to a bucket and to restore it that are compared."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from google.cloud import storage

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.attempt import Attempt
from keras_preempt.checkpoint.commit import Patience, commit
from keras_preempt.checkpoint.division import divide
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.layout import attempt_directory, attempt_name
from keras_preempt.checkpoint.reader import load
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.checkpoint.tensors import Array
from keras_preempt.checkpoint.values import Value
from keras_preempt.checkpoint.writer import WorkerShare, write_part
from keras_preempt.testing.gcs.fake import QUIET_CLIENT

SCRIPTS = Path(__file__).parent / "scripts"
BUCKET = "bucket"
POSITION = {"epoch": 0, "phase": "train", "batch": 1}
END_TIMEOUT = 20.0  # seconds until a process that was told to end has ended


def state(size: int) -> dict[str, Array]:
    """Weights and two slots of dense layers, `size` bytes in all: the same in every process."""
    random = np.random.default_rng(1)
    layers = 8
    width = int((size / 4 / 3 / layers) ** 0.5)
    return {
        f"layer-{layer}/{kind}": random.random((width, width), dtype=np.float32)
        for layer in range(layers)
        for kind in ("kernel", "momentum", "velocity")
    }


@contextmanager
def server(*, connection: float, machine: float | None = None) -> Iterator[str]:
    """Runs the fake in its own process; returns its address.

    Args:
        connection: Bytes a second of one connection, in each direction.
        machine: Bytes a second of one machine's connections together; None for no limit.
    """
    command = [sys.executable, "-m", "keras_preempt.testing.gcs.fake", "--bytes-per-second", str(connection)]
    if machine is not None:
        command += ["--machine-bytes-per-second", str(machine)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            endpoint = process.stdout.readline().strip()
            if not endpoint:
                raise RuntimeError("Expected the address of a fake bucket. Received: nothing; see above.")
            os.environ.update({**QUIET_CLIENT, "STORAGE_EMULATOR_HOST": endpoint})
            yield endpoint
        finally:
            process.terminate()
            process.wait(END_TIMEOUT)


class Way(Protocol):
    """A way to save a state and to restore it."""

    name: str

    def save(self) -> float:
        """Returns how many seconds it takes."""
        ...

    def restore(self) -> float:
        """Returns how many seconds it takes."""
        ...

    def forget(self) -> None:
        """Removes what was saved."""
        ...


def save_checkpoint(store: GcsStore, tensors: dict[str, Array], step: int = 1) -> None:
    """Writes and commits a checkpoint of one worker, as a save of the package does."""
    directory = attempt_directory(step, attempt_name(1, step))
    write_part(store, directory, 0, share_of(tensors, 0, 1))
    commit_checkpoint(store, tensors, 1, step)


def values_of(tensors: dict[str, Array]) -> list[Value]:
    return [Value(name, array.dtype.name, array.shape) for name, array in tensors.items()]


def share_of(tensors: dict[str, Array], worker: int, workers: int) -> WorkerShare:
    """Returns what one of some workers writes of tensors that all of them hold."""
    boxes = divide(values_of(tensors), range(workers))[worker]
    return WorkerShare([(box, box.of(tensors[box.tensor])) for box in boxes], {}, {}, POSITION)


def commit_checkpoint(store: GcsStore, tensors: dict[str, Array], workers: int, step: int = 1) -> None:
    """Commits the parts of some workers, as the first start of a run, which must have been claimed."""
    attempt = Attempt(
        step=step,
        name=attempt_name(1, step),
        position=POSITION,
        kind="periodic",
        members=workers,
        writers=tuple(range(workers)),
        values=values_of(tensors),
    )
    commit(store, attempt, Patience(600.0))


class Ours:
    """The package's store, writer and reader, with a number of connections."""

    def __init__(self, tensors: dict[str, Array], connections: int) -> None:
        self.name = f"keras_preempt, {connections} connection{'s' if connections > 1 else ''}"
        self.connections = connections
        self._tensors = tensors
        self._store = GcsStore(f"gs://{BUCKET}/ours-{connections}", connections=connections)
        incarnations.claim(self._store, {})

    def save(self) -> float:
        """See `Way.save`."""
        return seconds(lambda: save_checkpoint(self._store, self._tensors))

    def restore(self) -> float:
        """See `Way.restore`."""
        begun = time.perf_counter()
        loaded = load(self._store, committed(self._store)[0], 0, 1)
        took = time.perf_counter() - begun
        for name, array in self._tensors.items():
            if not np.array_equal(loaded.values.whole[name], array):
                raise RuntimeError(f"Expected {name!r} as it was saved. Received: something else.")
        return took

    def forget(self) -> None:
        """See `Way.forget`."""
        self._store.delete_tree("step-00000001")
        self._store.close()


class OneStream:
    """The client's own calls for a file, with the checksum that a careful user asks for."""

    name = "upload_from_filename, download_to_filename"

    def __init__(self, tensors: dict[str, Array], folder: Path) -> None:
        self._path, self._back = folder / "state", folder / "back"
        with self._path.open("wb") as file:
            for array in tensors.values():
                file.write(array.data)
        self._blob = storage.Client(project=None).bucket(BUCKET).blob("one-stream")

    def save(self) -> float:
        """See `Way.save`."""
        return seconds(lambda: self._blob.upload_from_filename(str(self._path), checksum="crc32c"))

    def restore(self) -> float:
        """See `Way.restore`."""
        return seconds(lambda: self._blob.download_to_filename(str(self._back), checksum="crc32c"))

    def forget(self) -> None:
        """See `Way.forget`."""
        self._blob.delete()
        self._back.unlink()


class TensorFlows:
    """tf.train.Checkpoint.write and read on gs://, in a process that is connected to the fake."""

    name = "tf.train.Checkpoint.write, read on gs://"

    def __init__(self, size: int, endpoint: str) -> None:
        # Imported here: it needs a package that only this comparison needs.
        from gcs_bridge import Bridge

        with ExitStack() as stack:
            bridge = stack.enter_context(Bridge(endpoint))
            self._process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(SCRIPTS / "gcs_tensorflow.py"), str(size), BUCKET],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, **bridge.environment(), "CUDA_VISIBLE_DEVICES": "-1"},
                )
            )
            stack.callback(self._process.terminate)
            self._answer()  # that it is ready
            self._stack = stack.pop_all()

    def _answer(self, order: str = "") -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if order:
            print(order, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Expected TensorFlow to {order or 'start'}. Received: its end; see above.")
        return float(line)

    def save(self) -> float:
        """See `Way.save`."""
        return self._answer("write")

    def restore(self) -> float:
        """See `Way.restore`."""
        return self._answer("read")

    def forget(self) -> None:
        """See `Way.forget`."""
        self._answer("forget")

    def __enter__(self) -> TensorFlows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def seconds(call: Callable[[], Any]) -> float:
    """Returns how long a call takes."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


@contextmanager
def ways(size: int, connections: list[int], endpoint: str, *, tensorflow: bool) -> Iterator[list[Way]]:
    """Returns all ways; the first is the one with which the others are compared."""
    tensors = state(size)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        found: list[Way] = [OneStream(tensors, Path(folder))]
        found += (Ours(tensors, count) for count in connections)
        if tensorflow:
            found.append(stack.enter_context(TensorFlows(size, endpoint)))
        yield found
