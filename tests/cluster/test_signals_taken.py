"""A SIGTERM from outside is heard whatever other code of the process has done with signals since fit began.

| what the other code did | heard through | the other code |
|---|---|---|
| nothing; asyncio in another thread | descriptor and handler | |
| took the wake-up descriptor away, or for itself | the handler, which takes it back | is told of its own signals |
| the same, and closed what it had put there | the handler | nothing is written to a closed descriptor |
| set a handler of its own | the descriptor | its handler runs as well |
| took both, as asyncio's add_signal_handler does | the descriptor, taken back within a second or so | is told as well |
| set the system's default action | both, taken back within a second or so | |
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from keras_preempt.notices.signals import LOOK_SECONDS
from tests.cluster.harness import describe, start_cluster

SCRIPT = Path(__file__).parent / "scripts" / "signals_taken.py"
TAKEN_BACK = "It is taken back"
HEARD_ALL_THE_SAME = "It is heard here all the same"
TAKEN_AGAIN = "so it is taken again"


@pytest.mark.parametrize(
    ("way", "before", "after"),
    [
        pytest.param("nothing", None, None, marks=pytest.mark.chaos),
        ("no descriptor", None, TAKEN_BACK),
        pytest.param("asyncio, another signal", None, TAKEN_BACK, marks=pytest.mark.chaos),
        pytest.param("asyncio, another signal, closed", None, TAKEN_BACK, marks=pytest.mark.chaos),
        pytest.param("asyncio, in a thread", None, None, marks=pytest.mark.chaos),
        ("asyncio, the same signal", TAKEN_BACK, None),
        ("another handler", HEARD_ALL_THE_SAME, None),
        pytest.param("the default", TAKEN_AGAIN, None, marks=pytest.mark.chaos),
        pytest.param("no descriptor, in a custom loop", None, TAKEN_BACK, marks=pytest.mark.chaos),
    ],
)
def test_the_signal_is_heard_and_answered_at_once(
    way: str, before: str | None, after: str | None, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    with start_cluster(SCRIPT, 1, args=[str(directory), way]) as cluster:
        cluster.wait_for_line(0, "^READY")
        if before is not None:
            cluster.wait_for_line(0, before, 60 * LOOK_SECONDS)
        cluster.signal(0, signal.SIGTERM)
        result = cluster.wait(180)
    _, heard, later = result.outputs[0].partition("about to be ended")
    assert heard, describe(result.outputs)
    result.assert_codes(75)
    if way.endswith("in a custom loop"):
        assert [path.name for path in directory.glob("*.index")] == ["ckpt-1.index"]
    else:
        assert len(list(directory.glob("step-*/*/MANIFEST.json"))) == 1
    assert later.count("\nRAN ") <= 1, f"more than the step in flight {describe(result.outputs)}"
    for told in (TAKEN_BACK, TAKEN_AGAIN):  # Once, however often it is looked at.
        assert result.outputs[0].count(told) == (told in (before, after))
    others = {"asyncio, the same signal": "LOOP", "another handler": "MINE"}
    for name, said in others.items():
        assert (said in result.outputs[0].split()) == (name == way), describe(result.outputs)
    if way == "another handler":  # It stays when the fit ends.
        assert re.search(r"^LEFT <lambda>\S* -1$", later, re.M)
