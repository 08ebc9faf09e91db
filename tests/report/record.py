"""A real run with three preemptions, one of them without a notice, as its directory tells it: `tests/report/recorded`.

`python -m tests.report.record` trains examples/digits.py on two workers once more, which takes minutes, and keeps what
a report reads. The page of it is what `tests/report/test_page_in_browser.py` looks at.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from keras_preempt.cluster import RestartPolicy, Supervisor
from keras_preempt.process.environment import DRILL, SAVE_EVERY
from keras_preempt.process.this_process import machine

RECORDED = Path(__file__).with_name("recorded")
SCRIPT = Path(__file__).parents[2] / "examples" / "digits.py"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}

#: What happens to each start, as `keras_preempt.drilled.rehearsal.Drill` reads it.
HAPPENS = (
    {"member": 0, "step": 70},
    {"member": 1, "step": 186, "kill": True},
    {"member": 1, "step": 292},
)

HOST = "trainer-0"
"""What the machine is called in the record."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "digits"

        def environment(number: int) -> dict[str, str | None]:
            happens = json.dumps(HAPPENS[number]) if number < len(HAPPENS) else None
            return {**QUIET, DRILL: happens, SAVE_EVERY: "40"}

        policy = RestartPolicy(max_failures=2, incarnation_timeout=600.0)
        command = [sys.executable, str(SCRIPT), str(run)]
        done = Supervisor(2, command, policy=policy, environment=environment).run()
        assert done.exit_code == 0, done.summary
        shutil.rmtree(RECORDED, ignore_errors=True)
        for file in [run / "run.json", *run.glob("incarnations/*"), *run.glob("events/*")]:
            kept = RECORDED / file.relative_to(run)
            kept.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text()
            kept.write_text(text if file.name == "run.json" else re.sub(re.escape(machine()), HOST, text))


if __name__ == "__main__":
    main()
