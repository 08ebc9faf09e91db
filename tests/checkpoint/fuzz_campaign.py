"""Reads thousands of broken and hostile checkpoints in a process that may take little memory and little time.

Run as: python -m tests.checkpoint.fuzz_campaign FOLDER SEED COUNT. It ends with the status 0 and says how many were
refused, or with an error that names the number of the input, which is all that it takes to make it again.
"""

from __future__ import annotations

import collections
import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.finding import CheckpointInfo, committed
from keras_preempt.checkpoint.reader import Loaded, Reading, load, verify
from tests.checkpoint.fuzz_mutations import SEALED, UNSEALED
from tests.checkpoint.fuzz_targets import MEMBERS, WANTED, Targets, make

MEMORY = 768 << 20  # bytes of addresses, of which the interpreter and NumPy have taken some
PATIENCE = 20.0  # seconds for one input, which takes milliseconds
LONGEST_MESSAGE = 2000


class Wrong(Exception):
    """The package did what it must never do."""


def identical(one: Loaded, other: Loaded) -> bool:
    return (one.manifest, one.state) == (other.manifest, other.state) and all(
        {n: (a.dtype, a.shape, a.tobytes()) for n, a in mine.items()}
        == {n: (a.dtype, a.shape, a.tobytes()) for n, a in theirs.items()}
        for mine, theirs in (
            (one.values.whole, other.values.whole),
            (one.values.local, other.values.local),
        )
    )


def check_refusal(error: CheckpointError) -> None:
    message = str(error)
    if not message.isprintable() or len(message) > LONGEST_MESSAGE or "Expected" not in message:
        raise Wrong(f"a refusal of {len(message)} characters: {message!r:.3000}")


def read(targets: Targets, info: CheckpointInfo, sealed: bool) -> bool:
    """Reads a checkpoint in all ways; returns whether it was refused by one of the workers."""
    refused = []
    for member in range(MEMBERS):
        try:
            loaded = load(targets.store, info, member, MEMBERS)
        except CheckpointError as error:
            check_refusal(error)
            refused.append(error)
            continue
        original = targets.originals.get((info.directory, member))
        if not sealed and (original is None or not identical(loaded, original)):
            raise Wrong(f"worker {member} got something else than what was written to {info.directory}")
    uses: tuple[Callable[[], object], ...] = (
        lambda: verify(targets.store, info),
        lambda: Reading(targets.store, info).load_all(),
        lambda: Reading(targets.store, info, wanted=WANTED).load(0),
    )
    for use in uses:
        try:
            use()
        except CheckpointError as error:
            check_refusal(error)
        else:
            if use is uses[0] and refused and not sealed:
                raise Wrong(f"verified what is refused: {refused[0]}")
    return bool(refused)


def check(targets: Targets, *, sealed: bool) -> bool:
    """Looks at the directory like a start does; returns whether the newer checkpoint was refused."""
    infos = committed(targets.store)
    by_folder = {info.directory: read(targets, info, sealed) for info in infos}
    if by_folder.get(targets.old.directory, True):
        raise Wrong("the older checkpoint, which nobody touched, cannot be read")
    return by_folder.get(targets.new.directory, True)


def run(root: Path, seed: int, count: int) -> collections.Counter[str]:
    targets = make(root)
    spare = root / "spare"
    shutil.copytree(targets.folder, spare)
    before = sorted(os.listdir(root)), targets.outside.stat().st_mtime_ns
    if check(targets, sealed=False):
        raise Wrong("refused what was written")
    told: collections.Counter[str] = collections.Counter()
    for number in range(count):
        dice = random.Random(f"{seed}/{number}")
        sealed = dice.random() < 0.5
        mutation = dice.choice(SEALED if sealed else UNSEALED)
        what = mutation(targets, dice)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        try:
            refused = check(targets, sealed=sealed)
        except BaseException as error:
            raise Wrong(f"input {number} of seed {seed}, {mutation.__name__}, {what}: {error!r}") from error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        told[f"{mutation.__name__} {'refused' if refused else 'read'}"] += 1
        if not set(os.listdir(targets.folder)) <= set(os.listdir(spare)):
            raise Wrong("something was written to the directory")
        shutil.rmtree(targets.folder)
        shutil.copytree(spare, targets.folder)
    if (sorted(os.listdir(root)), targets.outside.stat().st_mtime_ns) != before:
        raise Wrong("something outside the directory was touched")
    return told


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise Wrong(f"no answer within {PATIENCE} s")


def main() -> None:
    folder, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, _too_slow)
    told = run(folder, seed, count)
    if not {"tensorflow", "keras"}.isdisjoint(sys.modules):
        raise Wrong("saving and reading need TensorFlow or Keras")
    for name in sorted(told):
        print(f"{told[name]:7,d} {name}")
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{sum(told.values())} inputs; memory at most {taken} MiB")


if __name__ == "__main__":
    main()
