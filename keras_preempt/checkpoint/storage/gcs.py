"""A store in a bucket of Google Cloud Storage."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from keras_preempt.checkpoint.storage import gcs_client
from keras_preempt.checkpoint.storage.bucket import CONNECTIONS, BucketStore
from keras_preempt.checkpoint.storage.gcs_client import GcsPlace
from keras_preempt.checkpoint.storage.gcs_connections import Connections
from keras_preempt.checkpoint.storage.gcs_transfer import GcsObjects


class GcsStore(BucketStore):
    """Files below ``gs://bucket/prefix``, or in a whole bucket.

    `connect` returns the `google.cloud.storage.Client`, at the first call. The others are those of `BucketStore`.
    """

    def __init__(
        self,
        url: str,
        *,
        staging_dir: str | os.PathLike[str] | None = None,
        connect: Callable[[], Any] = gcs_client.connect,
        connections: int = CONNECTIONS,
    ) -> None:
        self._connections = Connections(2 * max(connections, 1))
        objects = GcsObjects(GcsPlace(url), connect, self._connections)
        super().__init__(objects, staging_dir=staging_dir, connections=connections)
