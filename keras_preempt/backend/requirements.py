"""Checks that what is installed can train under this package, and tells of versions that are not verified.

docs/versions.md says what "verified" means; ``make versions`` verifies both ends of the range again.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec

from packaging.version import Version

from keras_preempt.backend.versions import (
    NEWEST_KERAS,
    NEWEST_TENSORFLOW,
    OLDEST_KERAS,
    OLDEST_TENSORFLOW,
)
from keras_preempt.process import log

logger = logging.getLogger("keras_preempt")

_told: set[str] = set()


def check() -> None:
    """Checks that TensorFlow is installed, that Keras runs on it, and that neither is too old.

    Warns once per process in the log of a version that is newer than the verified ones.

    Raises:
        ImportError: One of these does not hold; the message says what to install or to set.
    """
    if find_spec("tensorflow") is None:
        raise ImportError(
            "Expected TensorFlow to be installed. Received: none. Install it with "
            "`pip install 'keras-preempt[tensorflow]'`, or on a Cloud TPU with `pip install 'keras-preempt[tpu]'`; "
            "the two exclude each other."
        )
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            f"Expected Keras to run on the TensorFlow backend. Received: {keras.backend.backend()!r}. Set the "
            "environment variable KERAS_BACKEND=tensorflow before Keras is imported, or the 'backend' in "
            "~/.keras/keras.json."
        )
    import tensorflow as tf

    _check_not_older("keras", keras.__version__, OLDEST_KERAS)
    _check_not_older("tensorflow", tf.__version__, OLDEST_TENSORFLOW)
    if Version(keras.__version__) > Version(NEWEST_KERAS) and "keras" not in _told:
        _told.add("keras")
        log.show()
        logger.warning(
            "Keras %s is newer than %s, the newest verified. %s", keras.__version__, NEWEST_KERAS, _look()
        )
    if Version(tf.__version__) > Version(NEWEST_TENSORFLOW) and "tensorflow" not in _told:
        _told.add("tensorflow")
        log.show()
        logger.warning(
            "TensorFlow %s is newer than %s, the newest verified. What is needed of it is checked where it is used.",
            tf.__version__,
            NEWEST_TENSORFLOW,
        )


def changed_names() -> list[str]:
    """Returns the private names that the installed Keras lacks or has changed, as far as that shows before a fit."""
    # Here, since what needs no TensorFlow works without it.
    from keras_preempt.backend.keras import names, running_fit
    from keras_preempt.backend.tensorflow import repairs

    functions = names.changed_functions((*repairs.FUNCTIONS, *names.FUNCTIONS))
    return [*functions, *names.missing(), *running_fit.changed_variables()]


def _check_not_older(package: str, installed: str, oldest: str) -> None:
    if Version(installed) < Version(oldest):
        raise ImportError(
            f"Expected {package} {oldest} or later. Received: {installed}. Install it with "
            f"`pip install '{package}>={oldest}'`."
        )


def _look() -> str:
    if changed := changed_names():
        return (
            f"Changed in it: {', '.join(changed)}. What needs these will say so; install keras=={NEWEST_KERAS}, or a "
            "newer keras-preempt."
        )
    return "All private functions that are relied upon are as they were, so it is used."
