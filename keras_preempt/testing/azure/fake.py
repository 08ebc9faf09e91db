"""Azure Blob Storage on the loopback interface, for tests and drills.

`FakeAzure` is an HTTP server that azure-storage-blob, obstore and other clients of Azure talk to. It checks signatures,
keeps ETags and versions, honours preconditions, verifies checksums, and makes connections fail as the real service and
its network do, on demand or by seed. For the worker processes of a drill it can run as a process of its own::

    python -m keras_preempt.testing.azure.fake --bucket b --fault-rate 0.1 --seed 1
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from typing import Any

from keras_preempt.testing.azure.access import Access
from keras_preempt.testing.azure.api import AzureApi
from keras_preempt.testing.azure.errors import AzureBucketErrors
from keras_preempt.testing.buckets.fake import FakeBucket, serve
from keras_preempt.testing.buckets.faults import Faults
from keras_preempt.testing.buckets.objects import OPERATIONS, Buckets
from keras_preempt.testing.buckets.wire import RateLimits


class FakeAzure(FakeBucket):
    """A fake Azure Blob Storage for as long as a ``with`` block lasts.

    Example:
        with FakeAzure(buckets=("container",)) as azure:
            blob = azure.client().get_blob_client("container", "greeting")
            blob.upload_blob(b"hello")
            assert azure.content("container", "greeting") == b"hello"

    It listens on 127.0.0.1 only, and keeps everything in memory: what is stored can still be looked at after the block.
    The account is addressed in the path.

    Args:
        buckets: Names of the containers that exist from the start.
        faults: Faults that happen by themselves; None for none.
        bytes_per_second: The most that one connection moves in either direction, or a pair: the most that it
            uploads and the most that it downloads. None for no limit.
        deny: Operations for which the caller lacks permission: any of ``"bucket"`` (a container's properties),
            ``"create"``, ``"delete"``, ``"get"``, ``"list"`` and ``"update"``.
        machine_bytes_per_second: The same for all connections of one machine together. Clients that send the same
            User-Agent are taken to be on one machine.
        bucket_bytes_per_second: The same for all connections together.
        versioned: Whether the containers keep versions; also an attribute, which may be set at any time.
        port: Where to listen; 0 for any free port.

    Attributes:
        account: The name of the storage account.
        account_key: Its key, in base64.
        expired_tokens: Bearer tokens that have expired, a set; any other is accepted. It may be changed at any time.

    Raises:
        ValueError: `deny` names an unknown operation, or a rate is not above 0.
    """

    operations = OPERATIONS
    policy_names = tuple(AzureBucketErrors.policies)
    api_type = AzureApi
    account = "fakeaccount"
    account_key = base64.b64encode(b"fake" * 6).decode()

    def __init__(
        self,
        buckets: Collection[str] = ("bucket",),
        faults: Faults | None = None,
        bytes_per_second: float | Sequence[float] | None = None,
        *,
        machine_bytes_per_second: float | Sequence[float] | None = None,
        bucket_bytes_per_second: float | Sequence[float] | None = None,
        deny: Collection[str] = (),
        versioned: bool = False,
        port: int = 0,
    ) -> None:
        super().__init__(
            faults,
            RateLimits.of(bytes_per_second, machine_bytes_per_second, bucket_bytes_per_second),
            deny,
            port,
            lambda denied: Buckets(buckets, denied, AzureBucketErrors()),
        )
        self.versioned = versioned
        self.expired_tokens: set[str] = set()

    def _new_api(self, port: int) -> AzureApi:
        access = Access(self.account, self.account_key, self.expired_tokens)
        return AzureApi(self._buckets, f"http://127.0.0.1:{port}/{self.account}", access)

    def environment(self) -> dict[str, str]:
        """Environment variables with which a child process finds this server instead of the real one."""
        return {
            "AZURE_STORAGE_ENDPOINT": self.endpoint,
            "AZURE_STORAGE_ACCOUNT_NAME": self.account,
            "AZURE_STORAGE_ACCOUNT_KEY": self.account_key,
            "AZURE_STORAGE_CONNECTION_STRING": ";".join(
                [
                    "DefaultEndpointsProtocol=http",
                    f"AccountName={self.account}",
                    f"AccountKey={self.account_key}",
                    f"BlobEndpoint={self.endpoint}",
                ]
            ),
            "AZURE_ALLOW_HTTP": "true",
        }

    def client(self, **options: Any) -> Any:
        """A `BlobServiceClient` of this server, which is closed at the end of the ``with`` block.

        Args:
            **options: Further arguments of `azure.storage.blob.BlobServiceClient`, such as `credential`.
        """
        from azure.storage.blob import (
            BlobServiceClient,
        )  # Here, since a server process does not need the client.

        client = BlobServiceClient(self.endpoint, **{"credential": self.account_key, **options})
        self._clients.append(client)
        return client


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGINT or SIGTERM; prints the endpoint first, on a line of its own."""
    return serve(FakeAzure, "keras_preempt.testing.azure.fake", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
