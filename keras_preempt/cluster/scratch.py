"""Temporary directories of the commands. The next start removes those that a killed process left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.posix_files import advice
from keras_preempt.checkpoint.storage.staging import StagingDirectory


@contextlib.contextmanager
def scratch_directory(purpose: str) -> Iterator[Path]:
    """Makes a directory in the system's temporary directory, and removes it when the block ends.

    It is locked while this process lives, which distinguishes it from one that a dead process has left.

    Args:
        purpose: A word for its name: lower-case letters.

    Raises:
        OSError: It cannot be made.
    """
    try:
        directory = StagingDirectory(purpose=purpose)
    except StoreUnavailable as error:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        raise OSError(
            f"Expected a temporary directory to work in. Received: {cause}. {advice(cause)} TMPDIR names it."
        ) from error
    with directory:
        yield directory.path
