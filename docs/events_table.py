"""Writes the table of events in docs/events.md, from the schema that `on_event` follows.

Run `python docs/events_table.py` after a change of `keras_preempt/report/event.py`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from generated import main

from keras_preempt.report.event import ANY, SCHEMA, Field


def table() -> str:
    """Returns a list of the fields of several kinds, and one of the kinds, each with its own fields."""
    used = Counter((name, field.meaning) for row in SCHEMA.values() for name, field in row.fields.items())
    shared: dict[str, Field] = {}
    listed = []
    for kind, row in SCHEMA.items():
        own, common = {}, []
        for name, field in row.fields.items():
            if used[name, field.meaning] > 1 and shared.setdefault(name, field).meaning == field.meaning:
                common.append(f"`{name}`" if field.always else f"`{name}` or not")
            else:
                own[name] = field
        has = f" ({', '.join(common)})" if common else ""
        listed += [f"- **{kind}**{'' if row.loops else '†'}: {row.when}{has}"]
        listed += [f"    {line}" for line in _fields(own)]
    listed += [
        "- **hang**: the job hung there (`phase`, `step`, `seconds` without progress); only in the files, by `run`",
        "- **gone**: the process has ended, with its status; only in the files, by `run` and `drill`",
    ]
    parts = ["Fields of several events (`passed` of any):", "\n".join(_fields({**ANY, **shared}))]
    parts.append(
        "Events, with the names of these that they have, and their own. Custom loops do not report those with †."
    )
    return "\n\n".join([*parts, "\n".join(listed)])


def _fields(fields: Mapping[str, Field]) -> list[str]:
    lines = []
    for name, field in fields.items():
        types = " or ".join(field.type.split(" | "))
        lines.append(f"- `{name}` ({types}{'' if field.always else ', or absent'}): {field.meaning}")
    return lines


if __name__ == "__main__":
    sys.exit(main(__file__, "events.md", "the schema of events", table))
