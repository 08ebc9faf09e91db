"""What a request to S3 is about."""

from __future__ import annotations

from dataclasses import dataclass

from keras_preempt.testing.buckets.calls import BucketCall
from keras_preempt.testing.s3.bodies import first_chunk, is_chunked

_SUBRESOURCES = frozenset(
    (
        *(
            "accelerate",
            "acl",
            "analytics",
            "attributes",
            "cors",
            "delete",
            "encryption",
            "inventory",
            "legal-hold",
        ),
        *("lifecycle", "location", "logging", "metrics", "notification", "object-lock", "ownershipControls"),
        *("partNumber", "policy", "policyStatus", "publicAccessBlock", "renameObject", "replication"),
        *("requestPayment", "restore", "retention", "select", "tagging", "torrent", "uploadId", "uploads"),
        *("versioning", "versions", "website"),
    )
)
"""The parameters that say what of a bucket or an object a request is about."""


@dataclass
class S3Call(BucketCall):
    """A request, whose path begins with the bucket."""

    def __post_init__(self) -> None:
        self.bucket, _, self.name = self.path[1:].partition("/")
        self.subresources = frozenset(self.query) & _SUBRESOURCES

    @property
    def part(self) -> str:
        return f" {self.query.get('partNumber', '')} {self.headers.get('range', '')}".rstrip()

    @property
    def category(self) -> str:
        if self.method in ("GET", "HEAD"):
            if not self.name:
                return "bucket" if self.method == "HEAD" or self.subresources - {"versions"} else "read"
            return "media" if self.method == "GET" and not self.subresources else "read"
        if self.method == "PUT" and self.name:
            return "chunk" if "uploadId" in self.query else "upload"
        return "write"

    def content_middle(self) -> int:
        if not is_chunked(self.headers):
            return len(self.body) // 2
        start, end = first_chunk(self.body)
        return (start + end) // 2
