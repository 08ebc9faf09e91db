"""Serves a bucket: SCHEME LIMITS. Prints the variables by which clients find it, in JSON, and runs until ended."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bucket_services import served_here

with served_here(sys.argv[1], **json.loads(sys.argv[2])) as fake:
    print(json.dumps(fake.environment()), flush=True)
    sys.stdin.read()
