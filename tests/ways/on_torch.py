"""What is promised for each way where Keras runs on torch, in one process.

It is what is promised for one device of TensorFlow, but for the ways that are named here. The data of most ways is
tf.data; on torch it is a `DataLoader` of the same samples: see `basics.dataset`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tests.ways.catalogue import inputs_torch
from tests.ways.catalogue.all_ways import ALL
from tests.ways.way import ONE, Verdict, Way


@dataclass(frozen=True)
class NotOnTorch:
    """The way cannot be gone on torch, with or without this package; there is no test.

    Attributes:
        reason: Why, as the end of "not on torch: ...".
    """

    reason: str


OTHERWISE: Mapping[str, Verdict | NotOnTorch] = {}
"""The ways of which something else is promised than for one device of TensorFlow."""

SHORT_FORM = ("loader", "loader-generator", "loader-workers-kept", "arrays")
"""Those that are run without `-m ''`."""


def on_torch(way: Way) -> Way | None:
    """Returns a way with the verdict of torch as that of its only strategy; None if it is not on torch."""
    verdict = OTHERWISE.get(way.name, way.verdicts.get(ONE))
    if verdict is None or isinstance(verdict, NotOnTorch):
        return None
    return replace(way, verdicts={ONE: verdict}, drawn=None)


HERE = [here for way in (*inputs_torch.WAYS, *ALL) if (here := on_torch(way)) is not None]
