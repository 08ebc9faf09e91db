"""Which worker reads which files of a checkpoint, where each reads a share and gets the others' from them."""

from __future__ import annotations

from collections.abc import Sequence


def share_out(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Divides files among workers; every worker comes to the same answer.

    The largest file comes first, and each goes to the worker that has the least to read so far. A file is not cut:
    what its reader verifies is the sum of the whole. So a share exceeds an even one by less than the largest file.

    Args:
        sizes: The bytes of each file.
        workers: How many workers there are, at least 1.

    Returns:
        The files of each worker, by their places in `sizes`, in that order. A worker may have none.

    Raises:
        ValueError: There is no worker.
    """
    if workers < 1:
        raise ValueError(f"Expected at least one worker. Received: {workers}. Name a worker that reads.")
    shares: list[list[int]] = [[] for _ in range(workers)]
    held = [0] * workers
    for file in sorted(range(len(sizes)), key=lambda file: (-sizes[file], file)):
        worker = min(range(workers), key=lambda worker: (held[worker], len(shares[worker])))
        shares[worker].append(file)
        held[worker] += sizes[file]
    return [sorted(share) for share in shares]
