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
    """Returns a table of the kinds, and for each kind one of its fields."""
    lines = ["| event | when | in custom loops |", "|---|---|---|"]
    lines += [
        f"| [`{kind}`](#{kind}) | {row.when} | {'x' if row.loops else ''} |" for kind, row in SCHEMA.items()
    ]
    parts = ["\n".join(lines)]
    parts.append("Any of them may also say:\n\n" + _fields(ANY))
    parts += [f"### {kind}\n\n{_fields(row.fields)}" for kind, row in SCHEMA.items()]
    return "\n\n".join(parts)


def _fields(fields: Mapping[str, Field]) -> str:
    lines = ["| field | type | what it says |", "|---|---|---|"]
    for name, field in fields.items():
        types = " or ".join(field.type.split(" | "))
        lines.append(f"| `{name}` | {types}{'' if field.always else ', or absent'} | {field.meaning} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(__file__, "events.md", "the schema of events", table))
