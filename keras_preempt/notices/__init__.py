"""Where notices of termination come from, and what they mean: one module for each kind of source."""

from __future__ import annotations

from keras_preempt.notices.notice import Notice

__all__ = ["Notice"]
