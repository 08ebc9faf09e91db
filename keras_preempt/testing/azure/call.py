"""What a request to Azure Blob Storage is about."""

from __future__ import annotations

from dataclasses import dataclass

from keras_preempt.testing.buckets.calls import BucketCall


@dataclass
class AzureCall(BucketCall):
    """A request, whose path is the account, the container and the blob. If it is `lost`, its block is not kept."""

    lost: bool = False

    def __post_init__(self) -> None:
        self.account, _, rest = self.path[1:].partition("/")
        self.bucket, _, self.name = rest.partition("/")
        self.resource, self.component = self.query.get("restype", ""), self.query.get("comp", "")

    @property
    def part(self) -> str:
        wanted = self.headers.get("x-ms-range", self.headers.get("range", ""))
        return f" {self.query.get('blockid', '')} {wanted}".rstrip()

    @property
    def category(self) -> str:
        if self.method in ("GET", "HEAD"):
            if not self.name:
                return "read" if self.component == "list" and self.bucket else "bucket"
            return "media" if self.method == "GET" and not self.component else "read"
        if self.method == "PUT" and self.name and not self.component:
            return "upload"
        return "chunk" if self.component == "block" else "write"
