"""Amazon S3 on the loopback interface, for tests and drills.

`FakeS3` is an HTTP server that boto3, obstore and other clients of S3 talk to. It checks signatures, keeps ETags and
versions, honours preconditions, verifies checksums, and makes connections fail as the real service and its network do,
on demand or by seed. For the worker processes of a drill it can run as a process of its own::

    python -m keras_preempt.testing.s3.fake --bucket b --fault-rate 0.1 --seed 1
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from keras_preempt.testing.buckets.fake import FakeBucket, serve
from keras_preempt.testing.buckets.faults import Faults
from keras_preempt.testing.buckets.objects import Buckets
from keras_preempt.testing.buckets.wire import RateLimits
from keras_preempt.testing.s3.api import S3Api
from keras_preempt.testing.s3.errors import S3_OPERATIONS, S3BucketErrors
from keras_preempt.testing.s3.signatures import Signatures

_ACCESS_KEY = "AKIAFAKEFAKEFAKEFAKE"
_SECRET = "fake/secret/fake/secret/fake/secret/fake"


class FakeS3(FakeBucket):
    """A fake Amazon S3 for as long as a ``with`` block lasts.

    Example:
        with FakeS3(buckets=("bucket",)) as s3:
            client = s3.client()
            client.put_object(Bucket="bucket", Key="greeting", Body=b"hello", IfNoneMatch="*")
            assert s3.content("bucket", "greeting") == b"hello"

    It listens on 127.0.0.1 only, and keeps everything in memory: what is stored can still be looked at after the block.
    Buckets are addressed in the path.

    Args:
        buckets: Names of the buckets that exist from the start.
        faults: Faults that happen by themselves; None for none.
        bytes_per_second: The most that one connection moves in either direction, or a pair: the most that it
            uploads and the most that it downloads. None for no limit.
        deny: Operations for which the caller lacks permission: any of ``"bucket"`` (a bucket's metadata), ``"create"``,
            ``"delete"``, ``"get"`` and ``"list"``.
        machine_bytes_per_second: The same for all connections of one machine together. Clients that send the same
            User-Agent are taken to be on one machine.
        bucket_bytes_per_second: The same for all connections together.
        region: Where the buckets are; requests that are signed for another one are refused.
        versioned: Whether the buckets keep versions; also an attribute, which may be set at any time.
        port: Where to listen; 0 for any free port.

    Attributes:
        credentials: The secret of each access key that is accepted. It may be changed at any time.
        expired_tokens: Session tokens that have expired, a set; any other is accepted. It may be changed, too.
        region: Where the buckets are.

    Raises:
        ValueError: `deny` names an unknown operation, or a rate is not above 0.
    """

    operations = S3_OPERATIONS
    policy_names = tuple(S3BucketErrors.policies)
    api_type = S3Api

    def __init__(
        self,
        buckets: Collection[str] = ("bucket",),
        faults: Faults | None = None,
        bytes_per_second: float | Sequence[float] | None = None,
        *,
        machine_bytes_per_second: float | Sequence[float] | None = None,
        bucket_bytes_per_second: float | Sequence[float] | None = None,
        deny: Collection[str] = (),
        region: str = "us-east-1",
        versioned: bool = False,
        port: int = 0,
    ) -> None:
        super().__init__(
            faults,
            RateLimits.of(bytes_per_second, machine_bytes_per_second, bucket_bytes_per_second),
            deny,
            port,
            lambda denied: Buckets(buckets, denied, S3BucketErrors(), marks_deletions=True),
        )
        self.region = region
        self.versioned = versioned
        self.credentials = {_ACCESS_KEY: _SECRET}
        self.expired_tokens: set[str] = set()

    def _new_api(self, port: int) -> S3Api:
        signatures = Signatures(self.region, self.credentials, self.expired_tokens)
        return S3Api(self._buckets, f"http://127.0.0.1:{port}", self.region, signatures)

    def environment(self) -> dict[str, str]:
        """Environment variables with which a child process finds this server instead of the real one."""
        access_key, secret = next(iter(self.credentials.items()))
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_S3": self.endpoint,  # Which counts before the other one.
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, **options: Any) -> Any:
        """A boto3 client of this server, which is closed at the end of the ``with`` block.

        Args:
            **options: Further arguments of `boto3.client`, such as `config`.
        """
        import boto3  # Here, since a server process does not need the client.

        access_key, secret = next(iter(self.credentials.items()))
        client = boto3.client(
            "s3",
            **{
                "endpoint_url": self.endpoint,
                "aws_access_key_id": access_key,
                "aws_secret_access_key": secret,
                "region_name": self.region,
                **options,
            },
        )
        self._clients.append(client)
        return client

    def lose_uploads(self) -> int:
        """Forgets every multipart upload that is under way (404 from now on); returns how many there were."""
        api = self._running().api
        assert isinstance(api, S3Api)
        return api.uploads.lose()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGINT or SIGTERM; prints the endpoint first, on a line of its own."""
    return serve(FakeS3, "keras_preempt.testing.s3.fake", arguments)


if __name__ == "__main__":
    raise SystemExit(main())
