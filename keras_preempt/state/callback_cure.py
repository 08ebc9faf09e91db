"""What a user can do about callbacks whose state is not kept over a restart. Needs no Keras: the drill says it, too."""

from __future__ import annotations

from collections.abc import Sequence

LAMBDA = "LambdaCallback ("
"""How the description of one begins."""


def cure(unkept: Sequence[str]) -> str:
    """Returns what to do about callbacks named as by `lost_state.unkept`, as sentences without the last full stop."""
    lambdas = [each for each in unkept if each.startswith(LAMBDA)]
    cures = []
    if len(lambdas) < len(unkept):
        cures.append("Give them get_state() and set_state(state); without any state, get_state() returns {}")
    if lambdas:
        cures.append(
            "Instead of a LambdaCallback, write a subclass of keras.callbacks.Callback that gathers in its attributes "
            "what is needed later: these are kept"
        )
    return ". ".join(cures)
