"""Writes docs/alignment.md from the table in `keras_preempt.agreement.alignment`.

Run `python docs/alignment_diagram.py` after changing the table; with `--check` nothing is written, and the
exit status is 1 if the file on disk is not what the table gives.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from keras_preempt.agreement.alignment import TRANSITIONS, State
from keras_preempt.agreement.member import Member

PAGE = Path(__file__).with_name("alignment.md")

_INTRODUCTION = """\
# Step alignment

<!-- Written by docs/alignment_diagram.py from the table in keras_preempt/agreement/alignment.py. Do not edit. -->

How one worker goes through a round of agreement. The theory of operation stands at the top of
`keras_preempt/agreement/alignment.py`. While a worker is in a state with attention on, its main thread looks at the
round at every boundary.
"""


def page() -> str:
    """The whole page as Markdown: a Mermaid state diagram and the transitions as a table."""
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
    return "\n\n".join([_INTRODUCTION.rstrip(), *parts, refused]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or compare it; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare the file on disk with the table")
    if not parser.parse_args(arguments).check:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"{PAGE} is stale: run python docs/alignment_diagram.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
