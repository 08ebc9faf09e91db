"""Checks that this package works with what is installed, and warns of versions that are not verified.

docs/versions.md says what "verified" means; ``make versions`` verifies both ends of the range again.
"""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec

from packaging.version import Version

from keras_preempt.backend.versions import NEWEST_KERAS, VERIFIED, too_old
from keras_preempt.process import log

logger = logging.getLogger("keras_preempt")


_NAMES = {"keras": "Keras", "tensorflow": "TensorFlow", "jax": "JAX", "torch": "torch"}
_INSTALL = {
    "tensorflow": "Install it with `pip install 'keras-preempt[tensorflow]'`, or on a Cloud TPU with `pip install "
    "'keras-preempt[tpu]'`; the two exclude each other.",
    "jax": "Install it with `pip install 'keras-preempt[jax]'`.",
    "torch": "Install it with `pip install 'keras-preempt[torch]'`.",
}

_warned: set[str] = set()


def check_installed() -> None:
    """Raises ImportError unless Keras runs on a backend that this package works with, and neither is too old.

    Logs a warning, once per process, for a version that is newer than the verified ones.
    """
    if not any(map(find_spec, VERIFIED)):
        raise ImportError(
            "Expected TensorFlow, JAX or torch to be installed. Received: none of them. Install TensorFlow with `pip "
            "install 'keras-preempt[tensorflow]'`, or on a Cloud TPU with `pip install 'keras-preempt[tpu]'` (the two "
            "exclude each other); or JAX with `pip install 'keras-preempt[jax]'` and set KERAS_BACKEND=jax; or torch "
            "with `pip install 'keras-preempt[torch]'` and set KERAS_BACKEND=torch."
        )
    backend = _backend()
    if backend not in VERIFIED:
        raise ImportError(
            f"Expected Keras to run on the TensorFlow, the JAX or the torch backend. Received: {backend!r}. Set the "
            "environment variable KERAS_BACKEND to tensorflow, jax or torch before Keras is imported, or the 'backend' "
            "in ~/.keras/keras.json."
        )
    import keras

    installed = {"keras": keras.__version__, backend: str(import_module(backend).__version__)}
    for package, (oldest, _) in VERIFIED[backend].items():
        if wrong := too_old(package, installed[package], oldest):
            raise ImportError(" ".join(wrong))
    for package, (_, newest) in VERIFIED[backend].items():
        # Without the local part: "2.14.1+cu130" is torch 2.14.1 for CUDA 13.0.
        if Version(Version(installed[package]).public) > Version(newest) and package not in _warned:
            _warned.add(package)
            found = "What is needed of it is checked where it is used."
            if package == "keras":
                found = "All private functions that are relied upon are as they were, so it is used."
                if changed := changed_names():
                    found = (
                        f"Changed in it: {', '.join(changed)}. What needs these will say so; install "
                        f"keras=={NEWEST_KERAS}, or a newer keras-preempt."
                    )
            log.show()
            logger.warning(
                "%s %s is newer than %s, the newest verified. %s",
                _NAMES[package],
                installed[package],
                newest,
                found,
            )


def _backend() -> str:
    try:
        import keras
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in VERIFIED:
            raise
        others = [each for each in VERIFIED if each != missing and find_spec(each)]
        instead = "".join(
            f" Or set KERAS_BACKEND={each}, to train on {_NAMES[each]}, which is." for each in others
        )
        raise ImportError(
            f"Expected {_NAMES[missing]} to be installed, which Keras is set to run on. Received: {error}. "
            f"{_INSTALL[missing]}{instead}"
        ) from error
    return str(keras.backend.backend())


def changed_names() -> list[str]:
    """Returns the private names that the installed Keras lacks or has changed, as far as can be seen before a fit."""
    import keras  # Here, since what needs no backend works without it.

    from keras_preempt.backend.keras import names, running_fit

    functions = names.FUNCTIONS
    if keras.backend.backend() == "tensorflow":
        functions = (*import_module("keras_preempt.backend.tensorflow.repairs").FUNCTIONS, *functions)
    changed = []
    for function in functions:
        try:
            if function.expected:
                function.find()
        except names.KerasInternalsError:
            changed.append(function.path)
    return [*changed, *names.missing(), *running_fit.changed_variables()]
