"""Writes the tables in docs/alignment.md from the table in `keras_preempt.agreement.alignment`.

Run `python docs/alignment_diagram.py` after changing the table.
"""

from __future__ import annotations

import sys

from generated import main

from keras_preempt.agreement.alignment import TRANSITIONS, State
from keras_preempt.agreement.member import Member


def picture_and_tables() -> str:
    """Returns the picture that docs/alignment_picture.py draws, and the states and the transitions as tables."""
    leaving = {row.source for row in TRANSITIONS if row.source is not row.target}
    states = ["| state | attention | ends fit's alignment |", "|---|---|---|"]
    for state in State:
        attention = "on" if Member(0, state=state).attention else "off"
        states.append(f"| {state.value} | {attention} | {'no' if state in leaving else 'yes'} |")
    table = ["| in state | event | to state | next round | why |", "|---|---|---|---|---|"]
    for row in TRANSITIONS:
        goes = "yes" if row.next_round else ""
        table.append(
            f"| {row.source.value} | {row.event.value} | {row.target.value} | {goes} | {row.meaning} |"
        )
    parts = [PICTURE, "## States", "\n".join(states), "## Transitions", "\n".join(table)]
    refused = "Any other event in a state raises `ProtocolError`."
    return "\n\n".join([*parts, refused])


PICTURE = "![Seven states, and the transitions between them: the tables below list them](images/alignment-light.svg)"
SOURCE = "the table in keras_preempt/agreement/alignment.py"

if __name__ == "__main__":
    sys.exit(main(__file__, "alignment.md", SOURCE, picture_and_tables))
