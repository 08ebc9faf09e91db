"""All ways, by the kind of thing that is theirs."""

from __future__ import annotations

from tests.ways.catalogue import (
    basics,
    callbacks,
    drawn,
    fits,
    inputs_augmented,
    inputs_python,
    inputs_tfdata,
    inputs_torch,
    models,
    optimizers,
    several_fits,
    shared_shuffles,
    structures,
    tuning,
)
from tests.ways.way import Way

_INPUTS = (basics, inputs_tfdata, shared_shuffles, inputs_augmented, inputs_python)
_MODELS = (models, optimizers)
_FITS = (fits, several_fits, tuning)
_MODULES = (*_INPUTS, *_MODELS, structures, *_FITS, callbacks)

INPUTS, MODELS, FITS, ALL = (
    [way for module in modules for way in module.WAYS] for modules in (_INPUTS, _MODELS, _FITS, _MODULES)
)


def find(name: str) -> Way:
    """Returns the way of that name."""
    return next(way for way in ALL if way.name == name)


def module_of(name: str) -> str:
    """Returns the module that has a way, which is all that a process imports to go it."""
    everything = (*_MODULES, inputs_torch)
    return next(
        (each.__name__ for each in everything if any(way.name == name for way in each.WAYS)),
        drawn.__name__,
    )
