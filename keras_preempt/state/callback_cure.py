"""What a user can do about callbacks whose state is not kept over a restart. Needs no Keras: the drill says it, too."""

from __future__ import annotations

from collections.abc import Sequence

_OF_OWN = "Give them get_state() and set_state(state); without any state, get_state() returns {}"

_OF_LAMBDAS = (
    "Instead of a LambdaCallback, write a subclass of keras.callbacks.Callback that gathers in its attributes what is "
    "needed later: these are kept"
)

LAMBDA = "LambdaCallback ("
"""How words about one begin."""


def cure(unkept: Sequence[str]) -> str:
    """Returns what to do about callbacks, as sentences without the last full stop.

    Args:
        unkept: The callbacks and what of each is not kept, in words, as `callback_doubts.unkept` has them.
    """
    lambdas = [each for each in unkept if each.startswith(LAMBDA)]
    return ". ".join(([_OF_OWN] if len(lambdas) < len(unkept) else []) + ([_OF_LAMBDAS] if lambdas else []))
