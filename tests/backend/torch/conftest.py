"""These tests need a process in which Keras runs on torch: tests/backend/test_on_torch.py starts it, or

KERAS_BACKEND=torch python -m pytest tests/backend/torch
"""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("KERAS_BACKEND") == "torch" else ["test_*.py"]
