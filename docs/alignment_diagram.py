"""Writes the diagram and the tables in docs/alignment.md from the table in `keras_preempt.agreement.alignment`.

Run `python docs/alignment_diagram.py` after changing the table.
"""

from __future__ import annotations

import sys

from generated import main

from keras_preempt.agreement.alignment import TRANSITIONS, Member, State


def diagram_and_tables() -> str:
    """Returns a Mermaid state diagram, and the states and the transitions as tables."""
    diagram = ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.LISTENING.value}"]
    for row in TRANSITIONS:
        suffix = " / next round" if row.next_round else ""
        diagram.append(f"    {row.source.value} --> {row.target.value}: {row.event.value}{suffix}")
    leaving = {row.source for row in TRANSITIONS if row.source is not row.target}
    diagram += [f"    {state.value} --> [*]" for state in State if state not in leaving]
    diagram.append("```")
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
    parts = ["\n".join(diagram), "## States", "\n".join(states), "## Transitions", "\n".join(table)]
    refused = "Any other event in a state raises `ProtocolError`."
    return "\n\n".join([*parts, refused])


SOURCE = "the table in keras_preempt/agreement/alignment.py"

if __name__ == "__main__":
    sys.exit(main(__file__, "alignment.md", SOURCE, diagram_and_tables))
