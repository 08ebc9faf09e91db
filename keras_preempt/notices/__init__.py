"""Where termination notices come from: one small module a source, each yielding a `Notice`."""

from __future__ import annotations

from keras_preempt.notices.notice import Notice

__all__ = ["Notice"]
