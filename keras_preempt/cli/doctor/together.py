"""Starts processes on this machine that look for each other as the workers of a job do.

``python -m keras_preempt.cli.doctor.together PLACE DIR SECONDS`` is one of them; it prints findings as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import asdict

from keras_preempt.checkpoint.storage.opening import open_store
from keras_preempt.cli.doctor.finding import Finding, Findings
from keras_preempt.cli.doctor.meeting import Meeting, job_of
from keras_preempt.cluster import LocalCluster

_FINDING = "keras-preempt doctor finding: "
_START = 60.0  # seconds for processes to start, on a busy machine, and to end


def meet_here(findings: Findings, workers: int, place: str, url: str, patience: float) -> bool:
    """Starts the processes; returns whether they share `url`.

    Args:
        findings: Collects findings.
        workers: How many.
        place: A place of the doctor in the directory.
        url: The directory.
        patience: Seconds that each waits for the others.
    """
    lines: list[tuple[int, str]] = []
    command = [sys.executable, "-m", __name__, place, url, str(patience)]
    with LocalCluster(workers, command, log=lambda index, line: lines.append((index, line))) as cluster:
        try:
            exits = cluster.wait(timeout=patience + _START)
        except TimeoutError:
            exits = cluster.exits
    told: set[Finding] = set()
    for index, line in sorted(lines):
        if line.startswith(_FINDING):
            finding = Finding(**json.loads(line.removeprefix(_FINDING)))
            if finding not in told and (finding.level != "ok" or index == 0):
                told.add(finding)
                findings.add(finding)
    codes = [exit.code for exit in exits]
    if len(codes) < workers or any(code not in (0, 1) for code in codes):
        last = " | ".join(line for _, line in lines[-5:])
        findings.problem(
            "shared",
            f"The {workers} processes that were to look for each other did not all end well ({codes}). {last}",
            "Correct what they say, or start fewer workers on this machine.",
        )
        return False
    return not any(finding.check == "shared" and finding.level == "problem" for finding in told)


def main(arguments: list[str]) -> int:
    """Runs one of the processes; returns its exit status."""
    place, url, patience = arguments
    job = job_of(os.environ)
    assert job is not None
    findings = Findings(lambda finding: print(_FINDING + json.dumps(asdict(finding)), flush=True))
    with contextlib.closing(open_store(place)) as store:
        met = Meeting(store, url, job, float(patience)).hold(findings)
    return 0 if met else 1


if __name__ == "__main__":
    # Under its own name, so that __name__ names the module for whoever starts it.
    sys.exit(main(sys.argv[1:]))
