"""How many writes under a deadline survive an outage of the bucket that ends before the deadline does.

Every write begins with the outage, in its own store, like the workers of a job under notice. The bucket is a
`FakeGcs`, which for some seconds answers nothing but an error, resets every connection, or is silent. Prints for each
of these how many files of how many were saved, and when the first write was given up. The exit status is 1 if a file
was lost.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from figures import conditions, table

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage.gcs import GcsStore
from keras_preempt.testing import FakeGcs, Faults

KINDS = ("503", "429", "reset", "stall")


@dataclass(frozen=True)
class Write:
    """The result of one write, which was saved or given up `seconds` after the outage began."""

    saved: bool
    seconds: float


def write_through(kind: str, writes: int, size: int, deadline: float, outage: float) -> list[Write]:
    """Writes files of `size` bytes at once, from the moment at which the bucket fails.

    Args:
        kind: How it fails; one of `FAULT_KINDS`.
        writes: How many files.
        size: Bytes of each.
        deadline: Seconds until which each must be stored.
        outage: Seconds until the bucket works again.
    """
    with FakeGcs() as gcs, tempfile.TemporaryDirectory() as staging:
        stores = [
            GcsStore(f"gs://bucket/{number}", staging_dir=staging, connect=gcs.client)
            for number in range(writes)
        ]
        gcs.faults = Faults(rate=1.0, kinds=(kind,), stall_seconds=10 * deadline)
        recovery = threading.Timer(outage, setattr, (gcs, "faults", None))
        began = time.monotonic()
        recovery.start()

        def write(store: GcsStore) -> Write:
            store.deadline = time.monotonic() + deadline
            try:
                with store.writer("part") as writer:
                    writer.write(bytes(size))
            except StoreUnavailable:
                return Write(False, time.monotonic() - began)
            return Write(True, time.monotonic() - began)

        with ThreadPoolExecutor(writes) as pool:
            found = list(pool.map(write, stores))
        recovery.join()
        for store in stores:
            store.close()
        assert len(gcs.objects("bucket")) >= sum(each.saved for each in found)
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--writes", type=int, default=16, help="files that are written at once")
    parser.add_argument("--kb", type=float, default=100, help="size of each")
    parser.add_argument("--deadline", type=float, default=15, help="seconds that each write has")
    parser.add_argument("--outage", type=float, default=7, help="seconds that the bucket fails")
    parser.add_argument("--kinds", nargs="+", default=KINDS, help="how it fails")
    options = parser.parse_args(arguments)
    print(f"{conditions()}.")
    print(f"An outage of {options.outage:g} s, a deadline after {options.deadline:g} s.\n")
    rows, lost = [], 0
    for kind in options.kinds:
        found = write_through(kind, options.writes, int(options.kb * 1e3), options.deadline, options.outage)
        saved = [each.seconds for each in found if each.saved]
        given_up = [each.seconds for each in found if not each.saved]
        lost += len(given_up)
        rows.append(
            [
                kind,
                f"{len(saved)} of {len(found)}",
                f"{max(saved):.1f}" if saved else "-",
                f"{min(given_up):.1f}" if given_up else "-",
            ]
        )
    print(table(["outage", "saved", "last saved, s", "first given up, s"], rows))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
