"""A process that saves one checkpoint and then reads it back, to be cut by a failpoint on the way.

It must not load TensorFlow, which the checkpoint layer neither needs nor should wait for.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from keras_preempt.checkpoint.reader import load  # noqa: E402
from keras_preempt.checkpoint.storage.local import LocalStore  # noqa: E402
from tests.checkpoint.builders import save  # noqa: E402

if __name__ == "__main__":
    store = LocalStore(sys.argv[1])
    info = save(store, int(sys.argv[2]), round=int(sys.argv[3]))
    load(store, info, 0, 2)
    assert not any(name.split(".")[0] in ("tensorflow", "keras") for name in sys.modules)
