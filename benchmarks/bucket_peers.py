"""What the vendors' own libraries, and TensorFlow, do with a state and a bucket."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from bucket_services import BUCKET, SCRIPTS
from bucket_ways import Way, seconds


class GoogleBlob:
    """google-cloud-storage's own calls for a file, with the checksum that a careful user asks for."""

    name = "upload_from_filename, download_to_filename"

    def __init__(self, path: Path) -> None:
        from google.cloud import storage

        self._path, self._back = path, path.with_name("back")
        self._blob = storage.Client(project=None).bucket(BUCKET).blob("peer")

    def save(self) -> float:
        """See `Way.save`."""
        return seconds(lambda: self._blob.upload_from_filename(str(self._path), checksum="crc32c"))

    def restore(self) -> float:
        """See `Way.restore`."""
        return seconds(lambda: self._blob.download_to_filename(str(self._back), checksum="crc32c"))

    def forget(self) -> None:
        """See `Way.forget`."""
        self._blob.delete()
        self._back.unlink()


class Boto3:
    """boto3's managed transfer of a file, with as many threads as connections."""

    def __init__(self, path: Path, connections: int) -> None:
        import boto3
        from boto3.s3.transfer import TransferConfig
        from botocore.config import Config

        self.name = f"boto3 upload_file, {connections} connections"
        self._path, self._back = path, path.with_name(f"back-{connections}")
        self._client = boto3.client("s3", config=Config(max_pool_connections=connections))
        self._key = f"peer-{connections}"
        self._config = TransferConfig(max_concurrency=connections)
        self.connections = connections

    def save(self) -> float:
        """See `Way.save`."""
        return seconds(
            lambda: self._client.upload_file(str(self._path), BUCKET, self._key, Config=self._config)
        )

    def restore(self) -> float:
        """See `Way.restore`."""
        return seconds(
            lambda: self._client.download_file(BUCKET, self._key, str(self._back), Config=self._config)
        )

    def forget(self) -> None:
        """See `Way.forget`."""
        self._client.delete_object(Bucket=BUCKET, Key=self._key)
        self._back.unlink()


class AzureBlob:
    """azure-storage-blob's own transfer of a file, with as many threads as connections."""

    def __init__(self, path: Path, connections: int) -> None:
        from azure.core.pipeline.transport import RequestsTransport
        from azure.storage.blob import ContainerClient

        self.name = f"azure-storage-blob, {connections} connections"
        self._path, self._back = path, path.with_name(f"back-{connections}")
        endpoint = os.environ["AZURE_STORAGE_ENDPOINT"]
        self._container = ContainerClient(
            endpoint,
            BUCKET,
            credential={
                "account_name": os.environ["AZURE_STORAGE_ACCOUNT_NAME"],
                "account_key": os.environ["AZURE_STORAGE_ACCOUNT_KEY"],
            },
            transport=RequestsTransport(),
        )
        self._blob = self._container.get_blob_client(f"peer-{connections}")
        self.connections = connections

    def save(self) -> float:
        """See `Way.save`."""

        def upload() -> None:
            with self._path.open("rb") as file:
                self._blob.upload_blob(file, overwrite=True, max_concurrency=self.connections)

        return seconds(upload)

    def restore(self) -> float:
        """See `Way.restore`."""

        def download() -> None:
            with self._back.open("wb") as file:
                self._blob.download_blob(max_concurrency=self.connections).readinto(file)

        return seconds(download)

    def forget(self) -> None:
        """See `Way.forget`."""
        self._blob.delete_blob()
        self._back.unlink()


class TensorFlows:
    """tf.train.Checkpoint.write and read on gs://, in a process that is connected to the fake."""

    name = "tf.train.Checkpoint.write, read on gs://"

    def __init__(self, size: int) -> None:
        # Imported here: it needs a package that only this comparison needs.
        from gcs_bridge import Bridge

        with ExitStack() as stack:
            bridge = stack.enter_context(Bridge(os.environ["STORAGE_EMULATOR_HOST"]))
            self._process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(SCRIPTS / "gcs_tensorflow.py"), str(size), BUCKET],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, **bridge.environment(), "CUDA_VISIBLE_DEVICES": "-1"},
                )
            )
            stack.callback(self._process.terminate)
            self._answer()  # that it is ready
            self._stack = stack.pop_all()

    def _answer(self, order: str = "") -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if order:
            print(order, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Expected TensorFlow to {order or 'start'}. Received: its end; see above.")
        return float(line)

    def save(self) -> float:
        """See `Way.save`."""
        return self._answer("write")

    def restore(self) -> float:
        """See `Way.restore`."""
        return self._answer("read")

    def forget(self) -> None:
        """See `Way.forget`."""
        self._answer("forget")

    def __enter__(self) -> TensorFlows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


@contextmanager
def peers(scheme: str, path: Path, connections: Sequence[int], *, tensorflow: bool) -> Iterator[list[Way]]:
    """Returns the other ways of a service.

    Args:
        scheme: Of its URLs.
        path: A file with the bytes of the state.
        connections: Numbers of connections, for those of which it can be chosen.
        tensorflow: Whether TensorFlow's own writer is one of them, where it has one.
    """
    with ExitStack() as stack:
        found: list[Way] = []
        if scheme == "s3":
            found += (Boto3(path, count) for count in connections)
        elif scheme == "az":
            found += (AzureBlob(path, count) for count in connections)
        else:
            found.append(GoogleBlob(path))
            if tensorflow:
                found.append(stack.enter_context(TensorFlows(path.stat().st_size)))
        yield found
