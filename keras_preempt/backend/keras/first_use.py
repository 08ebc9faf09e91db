"""Reports variables of Keras before they are read or assigned to for the first time.

A model that trains eagerly makes its variables while its first step runs, each just before it is used. Restored values
have to be assigned in between.

Verified with Keras 3.8.0 to 3.15.1.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import keras

from keras_preempt.backend.keras.names import AUTOCAST_SCOPE, IN_STATELESS_SCOPE
from keras_preempt.backend.keras.replacing import Replacements

_lock = threading.RLock()
_watches: list[weakref.ref[FirstUse]] = []


class FirstUse:
    """Calls `look` with each variable that is not `known`, before anything uses it, for as long as this is held.

    `look` runs within `outside` (of graphs, or of what records gradients) and without autocasting; it returns whether
    it is done with the variable. Raises KerasInternalsError if the installed Keras has other scopes of variables.
    """

    def __init__(
        self,
        known: Iterable[Any],
        look: Callable[[Any], bool],
        outside: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        AUTOCAST_SCOPE.find()
        self._autocast_scope = AUTOCAST_SCOPE.owner()
        self._in_stateless_scope = IN_STATELESS_SCOPE.find()
        # Held, so that no other variable gets the id of one of them.
        self._known = {id(variable): variable for variable in known}
        self._look = look
        self._outside = outside
        self._looking = False
        own = weakref.ref(self)
        _watches.append(own)
        _replacements.acquire()
        self._end = weakref.finalize(self, _forget, own)
        self._end.atexit = False

    def stop(self) -> None:
        """May be called more than once."""
        self._end()

    def used(self, variable: Any) -> None:
        """Called when a variable is about to be used."""
        if id(variable) in self._known or self._looking:
            return
        if self._in_stateless_scope() or variable._value is None:
            return
        with _lock:
            self._looking = True
            try:
                with self._outside(), self._autocast_scope(None):
                    if self._look(variable):
                        self._known[id(variable)] = variable
            finally:
                self._looking = False


def _forget(watch: weakref.ref[FirstUse]) -> None:
    _watches.remove(watch)
    _replacements.release()


def _install(replacements: Replacements) -> None:
    value, assign = keras.Variable.value, keras.Variable.assign

    def report(variable: Any) -> None:
        for reference in list(_watches):
            if (watch := reference()) is not None:
                watch.used(variable)

    @functools.wraps(assign)
    def reporting_assign(self: Any, new: Any) -> Any:
        report(self)
        return assign(self, new)

    def reporting_value(self: Any) -> Any:
        report(self)
        return value.fget(self)

    replacements.replace(keras.Variable, "value", property(reporting_value, doc=value.__doc__))
    replacements.replace(keras.Variable, "assign", reporting_assign)


_replacements = Replacements(_install)
