"""What all tests have in common."""

from __future__ import annotations

import os

from keras_preempt import environment

# A machine that tests run on may be in a cloud whose notices are no business of a test.
os.environ.setdefault(environment.PLATFORM, "generic")
