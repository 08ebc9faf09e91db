"""Checks that what is installed can train under this package, and tells of versions that are not verified.

docs/versions.md says what "verified" means; ``make versions`` verifies both ends of the range again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from packaging.version import Version

from keras_preempt.backend.installed import requirement
from keras_preempt.backend.versions import (
    NEWEST_JAX,
    NEWEST_KERAS,
    NEWEST_TENSORFLOW,
    OLDEST_JAX,
    OLDEST_KERAS,
    OLDEST_KERAS_ON_JAX,
    OLDEST_TENSORFLOW,
)
from keras_preempt.process import log

logger = logging.getLogger("keras_preempt")


@dataclass(frozen=True)
class _Package:
    """A package that Keras runs on.

    Attributes:
        name: What it is called.
        oldest: The oldest version that was verified.
        newest: The newest one.
        oldest_keras: The oldest Keras that was verified on it.
        install: How to install it.
    """

    name: str
    oldest: str
    newest: str
    oldest_keras: str
    install: str


_PACKAGES = {
    "tensorflow": _Package(
        "TensorFlow",
        OLDEST_TENSORFLOW,
        NEWEST_TENSORFLOW,
        OLDEST_KERAS,
        "Install it with `pip install 'keras-preempt[tensorflow]'`, or on a Cloud TPU with `pip install "
        "'keras-preempt[tpu]'`; the two exclude each other.",
    ),
    "jax": _Package(
        "JAX",
        OLDEST_JAX,
        NEWEST_JAX,
        OLDEST_KERAS_ON_JAX,
        "Install it with `pip install 'keras-preempt[jax]'`.",
    ),
}

_told: set[str] = set()


def check() -> None:
    """Checks that Keras runs on a backend that this package works with, and that neither is too old.

    Warns once per process in the log of a version that is newer than the verified ones.

    Raises:
        ImportError: One of these does not hold; the message says what to install or to set.
    """
    if not any(map(find_spec, _PACKAGES)):
        raise ImportError(
            "Expected TensorFlow or JAX to be installed. Received: neither. Install TensorFlow with `pip install "
            "'keras-preempt[tensorflow]'`, or on a Cloud TPU with `pip install 'keras-preempt[tpu]'` (the two exclude "
            "each other), or JAX with `pip install 'keras-preempt[jax]'` and set KERAS_BACKEND=jax."
        )
    backend = _backend()
    if backend not in _PACKAGES:
        raise ImportError(
            f"Expected Keras to run on the TensorFlow or the JAX backend. Received: {backend!r}. Set the environment "
            "variable KERAS_BACKEND=tensorflow or KERAS_BACKEND=jax before Keras is imported, or the 'backend' in "
            "~/.keras/keras.json."
        )
    import keras

    package = _PACKAGES[backend]
    installed = str(import_module(backend).__version__)
    _check_not_older("keras", keras.__version__, package.oldest_keras)
    _check_not_older(backend, installed, package.oldest)
    if Version(keras.__version__) > Version(NEWEST_KERAS) and "keras" not in _told:
        _told.add("keras")
        log.show()
        logger.warning(
            "Keras %s is newer than %s, the newest verified. %s", keras.__version__, NEWEST_KERAS, _look()
        )
    if Version(installed) > Version(package.newest) and backend not in _told:
        _told.add(backend)
        log.show()
        logger.warning(
            "%s %s is newer than %s, the newest verified. What is needed of it is checked where it is used.",
            package.name,
            installed,
            package.newest,
        )


def _backend() -> str:
    try:
        import keras
    except ModuleNotFoundError as error:
        missing = _PACKAGES.get((error.name or "").partition(".")[0])
        if missing is None:
            raise
        others = [each for each in _PACKAGES if _PACKAGES[each] is not missing and find_spec(each)]
        instead = "".join(
            f" Or set KERAS_BACKEND={each}, to train on {_PACKAGES[each].name}, which is." for each in others
        )
        raise ImportError(
            f"Expected {missing.name} to be installed, which Keras is set to run on. Received: {error}. "
            f"{missing.install}{instead}"
        ) from error
    return str(keras.backend.backend())


def changed_names() -> list[str]:
    """Returns the private names that the installed Keras lacks or has changed, as far as that shows before a fit."""
    # Here, since what needs no backend works without it.
    import keras

    from keras_preempt.backend.keras import names, running_fit

    replaced: tuple[names.PrivateName, ...] = ()
    if keras.backend.backend() == "tensorflow":
        replaced = import_module("keras_preempt.backend.tensorflow.repairs").FUNCTIONS
    functions = names.changed_functions((*replaced, *names.FUNCTIONS))
    return [*functions, *names.missing(), *running_fit.changed_variables()]


def _check_not_older(package: str, installed: str, oldest: str) -> None:
    if Version(installed) < Version(oldest):
        raise ImportError(
            f"Expected {package} {oldest} or later. Received: {installed}. Install it with "
            f"`pip install '{requirement(package, oldest)}'`."
        )


def _look() -> str:
    if changed := changed_names():
        return (
            f"Changed in it: {', '.join(changed)}. What needs these will say so; install keras=={NEWEST_KERAS}, or a "
            "newer keras-preempt."
        )
    return "All private functions that are relied upon are as they were, so it is used."
