"""What the drills of the gallery came to, as the page shows it: kept in verdicts.json, written by the drills alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from tests.gallery.drilled import IDENTICAL, Outcome

RECORDS = Path(__file__).with_name("verdicts.json")


class Record(TypedDict):
    """What one drill came to: the verdict, and what the log said before the first step, each line once."""

    verdict: str
    said: list[str]


def record_of(outcome: Outcome) -> Record:
    """What is kept of an outcome."""
    verdict = "identical" if outcome.status == IDENTICAL else "different"
    return {"verdict": verdict, "said": _once(line for lines in outcome.said for line in lines)}


def load() -> dict[str, Record]:
    """Returns all records by the name of the script."""
    if not RECORDS.exists():
        return {}
    found: dict[str, Record] = json.loads(RECORDS.read_text(encoding="utf-8"))
    return found


def save(records: dict[str, Record]) -> None:
    """Writes all records, in the order of their names."""
    text = json.dumps(records, indent=1, sort_keys=True, ensure_ascii=False)
    RECORDS.write_text(f"{text}\n", encoding="utf-8")


def _once(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))
