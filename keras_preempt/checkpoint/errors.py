"""The errors of checkpoints and of the storage that holds them."""

from __future__ import annotations

from typing import Any, cast

_LONGEST = 500  # characters of a message that may come from a file


def _remade(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """Makes an error from the arguments of its base class, not from those of its own constructor."""
    error = kind.__new__(kind, *arguments)
    builtin = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    builtin.__init__(error, *arguments)  # type: ignore[misc]
    return error


class PicklableError(Exception):
    """An error that survives `pickle` with its message and attributes.

    Python would pass the message to the constructor, which takes other arguments where it composes the message.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        made = cast("tuple[Any, ...]", super().__reduce__())
        return _remade, (type(self), made[1]), *made[2:]


class CheckpointError(PicklableError):
    """Base of every error that the checkpoint layer raises on purpose."""


class StoreUnavailable(CheckpointError, OSError):
    """The storage could not do what was asked: no permission, no space, an I/O error, no such place."""


class CallFailed(StoreUnavailable):
    """The system has refused a call on a file, which was not retried: the cause may be temporary.

    A store in a bucket retries by itself and does not raise this.
    """


class WriteUncertain(StoreUnavailable):
    """A file was sent, and it is not known whether it is stored or will be: a request may still be carried out.

    The caller must not act as if there were no such file, and must not remove anything that it may refer to.
    """


class NotFound(CheckpointError):
    """Nothing is stored under the name that was asked for."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(
            f"Expected a file named {name!r}. Received: nothing of that name in {where}. "
            "It was removed or never written."
        )


class AlreadyExists(CheckpointError):
    """Something is stored under that name already; it was left as it is."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(
            f"Expected no file named {name!r}. Received: one that exists already in {where}. "
            "It was left unchanged, since stored files are never overwritten."
        )


class TooLarge(CheckpointError):
    """A file is larger than the caller is willing to hold in memory."""

    def __init__(self, name: str, size: int, limit: int) -> None:
        super().__init__(
            f"Expected {name!r} to hold at most {limit} bytes. Received: {size} bytes. "
            "It was not read; check where the file comes from."
        )
        self.size = size


class NotEnoughMemory(CheckpointError):
    """A checkpoint claims to hold more than this process can have in memory."""

    def __init__(self, directory: str, size: int, limit: int) -> None:
        super().__init__(
            f"Expected memory for the {size} bytes of tensors that {directory} lists. Received: {limit} bytes that "
            "this process can have. Check where the checkpoint comes from, or restore it on a larger machine."
        )


class UnsafeName(CheckpointError, ValueError):
    """A name is not a plain relative path below the directory, so it is not used at all."""


class CorruptCheckpoint(CheckpointError):
    """A stored file is not what was written.

    Attributes:
        file: Name of the file in the store.
        why: What is wrong with it.
    """

    def __init__(self, file: str, why: str) -> None:
        file, why = one_line(file), one_line(why)
        super().__init__(
            f"Expected {file} to be what was written. Received: {why}. "
            "The checkpoint that it belongs to cannot be used; an older one may be complete."
        )
        self.file = file
        self.why = why


def why_unusable(directory: str, error: Exception) -> str:
    """Says what is wrong with a checkpoint, in a line that names its folder and what follows from that."""
    if isinstance(error, CorruptCheckpoint):
        return f"{error.file.removeprefix(f'{directory}/')} is not what was written: {error.why}"
    return str(error).rstrip(".")


class UnsupportedFormat(CheckpointError):
    """A file was written in a newer format than this version reads."""

    def __init__(self, file: str, received: int, supported: int) -> None:
        super().__init__(
            f"Expected {file} in format version {supported} or older. Received: format version {received}. "
            f"Install a keras-preempt release that reads format version {received}."
        )


class ForeignDirectory(CheckpointError):
    """The directory holds something, but nothing that keras_preempt has written."""


class IdentityMismatch(CheckpointError):
    """The directory belongs to another model or to another configuration of the run."""


class PositionMismatch(CheckpointError):
    """The workers saved at different positions of the training, so their parts do not fit together."""


class CommitFailed(CheckpointError):
    """A checkpoint was not committed; nothing refers to its parts."""


class PartsMissing(CommitFailed):
    """Required parts did not arrive: their workers are gone, or too slow.

    Attributes:
        late: The numbers of these workers.
    """

    def __init__(self, message: str, late: tuple[int, ...]) -> None:
        super().__init__(message)
        self.late = late


class SaveCancelled(CheckpointError):
    """A save was given up: another one cannot wait, or a worker has failed."""


class Fenced(CheckpointError):
    """A newer incarnation of the run has claimed the directory; this one must not commit anything from now on."""

    def __init__(self, ours: int, newest: int, where: str) -> None:
        super().__init__(
            f"Expected incarnation {ours} to be the newest one of {where}. Received: incarnation {newest} has "
            "claimed it since. Nothing was committed; stop this job, or give the other one its own directory."
        )


def one_line(text: str) -> str:
    """Returns text that may come from a file in a form fit for a log: on one line, printable, and not too long."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 4 :]}"
    return text if text.isprintable() else ascii(text)[1:-1]
