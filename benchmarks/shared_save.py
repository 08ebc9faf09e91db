"""How several processes share one save: bytes of each, and the time until it is committed."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import table

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.storage.local import LocalStore

_SCRIPT = Path(__file__).parent / "scripts" / "write_share.py"
_LIMIT = 300.0  # seconds for one save


@dataclass(frozen=True)
class SharedSave:
    """One save.

    Attributes:
        sizes: Bytes of mirrored tensors that each process has written.
        seconds: From the moment at which all were told to begin until the commit.
    """

    sizes: list[int]
    seconds: float


def share_out(root: Path, megabytes: int, writers: Sequence[int], repetitions: int) -> str:
    """Measures with each number of writers, in turn; returns the table."""
    saves: dict[int, list[SharedSave]] = {count: [] for count in writers}
    for number in range(repetitions):
        for count in writers:
            folder = root / f"shared {count} {number}"
            saves[count].append(save_together(folder, megabytes, count))
            shutil.rmtree(folder)
    rows = []
    for count, found in saves.items():
        total = sum(found[0].sizes)
        seconds = statistics.median(save.seconds for save in found)
        shares = [size * count / total for size in found[0].sizes]
        rows.append(
            [
                f"{count} writer{'s' if count > 1 else ''}",
                f"{min(found[0].sizes) / 1e6:.1f}",
                f"{max(found[0].sizes) / 1e6:.1f}",
                f"{min(shares):.3f} - {max(shares):.3f}",
                f"{seconds * 1000:.0f}",
                f"{total / seconds / 1e6:.0f}",
            ]
        )
    header = ["one disk", "least MB", "most MB", "x 1/N", "ms to commit", "MB/s"]
    return table(header, rows) if rows else ""


def save_together(folder: Path, megabytes: int, writers: int) -> SharedSave:
    """Lets processes write their shares at the same time."""
    store = LocalStore(folder)
    store.prepare()
    incarnations.claim(store, {})
    processes = [
        subprocess.Popen(
            [sys.executable, str(_SCRIPT), str(folder), str(megabytes), str(member), str(writers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for member in range(writers)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(
                    "Expected every writer to get ready. Received: an end; see its error above."
                )
        began = time.monotonic()
        answers = []
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            output, _ = process.communicate(timeout=_LIMIT)
            if process.returncode:
                raise RuntimeError(
                    f"Expected every writer to end well. Received: status {process.returncode}."
                )
            answers.append(json.loads(output))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    # The monotonic clock is the system's, the same for all processes.
    return SharedSave([answer["bytes"] for answer in answers], answers[0]["committed"] - began)
