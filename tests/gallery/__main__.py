"""Drills scripts of the gallery: ``python -m tests.gallery [--jax] [--write] [--logs FOLDER] [NAME ...]``.

With ``--write`` the results are written to verdicts.json, or with ``--jax`` to verdicts_jax.json, except those of a
script with a problem; run docs/gallery_table.py after that. The exit status is 1 if a script has a problem.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.gallery.catalogue import SCRIPTS
from tests.gallery.drilled import drill, load_records, record_of, save_records
from tests.gallery.on_jax import on_jax


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gallery", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of scripts; all if none is given")
    parser.add_argument("--jax", action="store_true", help="with Keras on JAX, those that can run there")
    parser.add_argument("--write", action="store_true", help="write the results")
    parser.add_argument("--logs", type=Path, help="keep the output of each drill in this folder")
    arguments = parser.parse_args()
    chosen = [s for s in SCRIPTS if not arguments.names or any(name in s.name for name in arguments.names)]
    backend = "jax" if arguments.jax else "tensorflow"
    if arguments.jax:
        chosen = [there for script in chosen if (there := on_jax(script)) is not None]
    failed = False
    for script in chosen:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="gallery-") as folder:
            outcome = drill(script, Path(folder), backend)
        problems = outcome.problems(script)
        failed = failed or bool(problems)
        print(f"{script.name}: {outcome.verdict or 'no verdict'} [{time.monotonic() - began:.0f} s]")
        for line in dict.fromkeys(line for lines in outcome.said for line in lines):
            print(f"    said: {line}")
        for problem in problems:
            print(f"    PROBLEM: {problem}", flush=True)
        if arguments.logs is not None:
            arguments.logs.mkdir(parents=True, exist_ok=True)
            log = arguments.logs / f"{script.name.replace('/', '-')}.txt"
            log.write_text(outcome.output, encoding="utf-8")
        if arguments.write and not problems:
            # Read and written at once: another process may drill the others.
            save_records({**load_records(backend), script.name: record_of(outcome)}, backend)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
