"""Google Cloud Storage on the loopback interface, for tests and drills.

`FakeGcs` is an HTTP server that the real google-cloud-storage client talks to. It keeps generations, honours
preconditions, verifies checksums, and makes connections fail as the real service and its network do, on demand or by
seed. For the worker processes of a drill it can run as a process of its own::

    python -m keras_preempt.testing.gcs.fake --bucket b --fault-rate 0.1 --seed 1
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

from keras_preempt.testing.buckets.fake import FakeBucket, serve
from keras_preempt.testing.buckets.faults import Faults
from keras_preempt.testing.buckets.objects import OPERATIONS
from keras_preempt.testing.buckets.wire import BucketServer, RateLimits
from keras_preempt.testing.gcs.api import Api
from keras_preempt.testing.gcs.errors import GcsBucketErrors
from keras_preempt.testing.gcs.objects import GcsBuckets

QUIET_CLIENT = {"DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA": "true"}
"""Keeps google-cloud-storage from asking for each bucket's metadata in a thread of its own, which would go on for two
minutes after the server is gone and disturb the next tests."""


class FakeGcs(FakeBucket):
    """A fake Google Cloud Storage for as long as a ``with`` block lasts.

    Example:
        with FakeGcs(buckets=("bucket",)) as gcs:
            blob = gcs.client().bucket("bucket").blob("greeting")
            blob.upload_from_string(b"hello", if_generation_match=0, checksum="crc32c")
            assert gcs.content("bucket", "greeting") == b"hello"

    It listens on 127.0.0.1 only, and keeps everything in memory: what is stored can still be looked at after the block.
    `QUIET_CLIENT` is added to the environment of this process and stays there.

    Args:
        buckets: Names of the buckets that exist from the start.
        faults: Faults that happen by themselves; None for none.
        bytes_per_second: The most that one connection moves in either direction, or a pair: the most that it
            uploads and the most that it downloads. None for no limit. Several connections are several times as fast,
            as in a real network.
        deny: Operations for which the caller lacks permission: any of ``"bucket"`` (a bucket's metadata), ``"create"``,
            ``"delete"``, ``"get"``, ``"list"`` and ``"update"``.
        machine_bytes_per_second: The same for all connections of one machine together, like that of a network card.
            Clients that send the same User-Agent are taken to be on one machine.
        bucket_bytes_per_second: The same for all connections together, like the quota of a project.
        location: The location that the buckets report.
        port: Where to listen; 0 for any free port.

    Raises:
        ValueError: `deny` names an unknown operation, or a rate is not above 0.
    """

    operations = OPERATIONS
    policy_names = tuple(GcsBucketErrors.policies)
    api_type = Api
    _buckets: GcsBuckets

    def __init__(
        self,
        buckets: Collection[str] = ("bucket",),
        faults: Faults | None = None,
        bytes_per_second: float | Sequence[float] | None = None,
        *,
        machine_bytes_per_second: float | Sequence[float] | None = None,
        bucket_bytes_per_second: float | Sequence[float] | None = None,
        deny: Collection[str] = (),
        location: str = "US",
        port: int = 0,
    ) -> None:
        super().__init__(
            faults,
            RateLimits.of(bytes_per_second, machine_bytes_per_second, bucket_bytes_per_second),
            deny,
            port,
            lambda denied: GcsBuckets(buckets, denied, location),
        )

    def _new_api(self, port: int) -> Api:
        return Api(self._buckets, f"http://127.0.0.1:{port}")

    def _new_server(self) -> BucketServer:
        for name, value in QUIET_CLIENT.items():
            os.environ.setdefault(name, value)
        return super()._new_server()

    def environment(self) -> dict[str, str]:
        """Environment variables with which a child process finds this server instead of the real one."""
        return {
            "STORAGE_EMULATOR_HOST": self.endpoint,
            "GOOGLE_CLOUD_PROJECT": "fake-project",
            **QUIET_CLIENT,
        }

    def client(self) -> Any:
        """A `google.cloud.storage.Client` of this server, which is closed at the end of the ``with`` block."""
        # Imported here: a server process does not need the client.
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        client = storage.Client(
            project="fake-project",
            credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
            client_options={"api_endpoint": self.endpoint},
        )
        self._clients.append(client)
        return client

    def lose_sessions(self) -> int:
        """Forgets every resumable upload that is under way (410 from now on); returns how many there were."""
        api = self._running().api
        assert isinstance(api, Api)
        return api.sessions.lose()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGINT or SIGTERM; prints the endpoint first, on a line of its own."""
    return serve(FakeGcs, "keras_preempt.testing.gcs.fake", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
