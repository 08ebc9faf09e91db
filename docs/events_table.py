"""Writes the table of events in docs/events.md, from the schema that `on_event` follows.

Run `python docs/events_table.py` after a change of `keras_preempt/report/event.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from generated import main

from keras_preempt.report.event import ANY, SCHEMA, Field


def table() -> str:
    """Returns a table of the kinds, and a list of the fields of each."""
    lines = ["| event | when |", "|---|---|"]
    lines += [
        f"| `{kind}` | {row.when}{'' if row.loops else ' (`fit` only)'} |" for kind, row in SCHEMA.items()
    ]
    lines.append(
        "| `gone` | the process has ended, with its exit status; only in the files, by `run` and `drill` |"
    )
    parts = ["\n".join(lines), "Any event may also have:\n\n" + _fields(ANY)]
    parts += [f"### {kind}\n\n{_fields(row.fields)}" for kind, row in SCHEMA.items()]
    return "\n\n".join(parts)


def _fields(fields: Mapping[str, Field]) -> str:
    lines = []
    for name, field in fields.items():
        types = " or ".join(field.type.split(" | "))
        lines.append(f"- `{name}` ({types}{'' if field.always else ', or absent'}): {field.meaning}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(__file__, "events.md", "the schema of events", table))
