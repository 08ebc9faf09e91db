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
    """Returns a table of the kinds, and a list of the fields: those of several kinds first, then those of each."""
    lines = ["| event | when |", "|---|---|"]
    lines += [
        f"| `{kind}` | {row.when}{'' if row.loops else ' (`fit` only)'} |" for kind, row in SCHEMA.items()
    ]
    lines.append(
        "| `gone` | the process has ended, with its status; only in the files, by `run` and `drill` |"
    )
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
        heading = ", ".join([f"- **{kind}**", *common])
        listed.append("\n".join([heading, *(f"    {line}" for line in _fields(own))]))
    return "\n\n".join(
        [
            "\n".join(lines),
            "### Fields",
            "In several events:",
            "\n".join(_fields({**ANY, **shared})),
            "Of each event: the names of these that it has, and its own:",
            "\n".join(listed),
        ]
    )


def _fields(fields: Mapping[str, Field]) -> list[str]:
    lines = []
    for name, field in fields.items():
        types = " or ".join(field.type.split(" | "))
        lines.append(f"- `{name}` ({types}{'' if field.always else ', or absent'}): {field.meaning}")
    return lines


if __name__ == "__main__":
    sys.exit(main(__file__, "events.md", "the schema of events", table))
