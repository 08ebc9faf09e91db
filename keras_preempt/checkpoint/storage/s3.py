"""A store in a bucket of Amazon S3, or of a service that speaks its language, such as MinIO, Ceph or R2.

Everything that reaches the bucket is in the environment, under the names that Amazon's own tools use. The keys of a
profile are read by boto3, if that is installed: obstore itself reads no profile.
"""

from __future__ import annotations

import os
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from obstore.store import S3Store

from keras_preempt.checkpoint.storage.bucket import CONNECTIONS, BucketStore
from keras_preempt.checkpoint.storage.bucket_place import BucketPlace
from keras_preempt.checkpoint.storage.obstore_bucket import ObstoreClient, client_options, made_of_environment
from keras_preempt.checkpoint.storage.obstore_errors import BadEnvironment, CloudWords
from keras_preempt.checkpoint.storage.obstore_transfer import ObstoreObjects

_PLACE = re.compile(r"(?i:s3)://([a-z0-9][a-z0-9._-]{1,61}[a-z0-9])(?:/(.*))?", re.DOTALL)
_KEYS_LAST = timedelta(minutes=5)  # until boto3 is asked again, which renews them in time

S3_WORDS = CloudWords(
    service="Amazon S3, or a service that supports its conditional writes (If-None-Match)",
    bucket="bucket",
    login=(
        "Attach a role to the machine, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN, if "
        "there is one), or set AWS_PROFILE and install boto3, which reads profiles."
    ),
    create=(
        "Check the name of the bucket and AWS_ENDPOINT_URL, or create it with `aws s3 mb s3://{bucket}`."
    ),
    permission=(
        "Give this account s3:PutObject, s3:GetObject and s3:DeleteObject on arn:aws:s3:::{bucket}/*, and "
        "s3:ListBucket on arn:aws:s3:::{bucket}."
    ),
    wrong_region="The bucket is in another region: set AWS_REGION to it.",
    locked=(
        "Old checkpoints are removed, which this bucket forbids for a while. Use a bucket without a legal hold or a "
        "retention period."
    ),
    tells_deletions=False,
)


class S3Place(BucketPlace):
    """A prefix of a bucket, given as ``s3://bucket/prefix`` or ``s3://bucket``; raises ValueError for all else."""

    def __init__(self, url: str) -> None:
        match = _PLACE.fullmatch(url)
        if match is None:
            raise ValueError(
                f"Expected a place such as s3://bucket/prefix. Received: {url!r}. Bucket names have 3 to 63 "
                "lower-case letters, digits, '-', '_' and '.'; correct the name."
            )
        super().__init__(url, f"s3://{match[1]}", match[1], match[2] or "")


class S3BucketStore(BucketStore):
    """Files below ``s3://bucket/prefix``, or in a whole bucket. The options are those of `BucketStore`."""

    def __init__(
        self,
        url: str,
        *,
        staging_dir: str | os.PathLike[str] | None = None,
        connections: int = CONNECTIONS,
    ) -> None:
        place = S3Place(url)
        objects = ObstoreObjects(place, lambda: _connect(place.bucket), S3_WORDS)
        super().__init__(objects, staging_dir=staging_dir, connections=connections)


def _connect(bucket: str) -> ObstoreClient:
    session = _profile_session()
    credentials = None if session is None else session.get_credentials()
    if session is not None and credentials is None and _profile():
        raise BadEnvironment(f"the profile {_profile()!r} without credentials")
    region = (
        _first("AWS_REGION", "AWS_DEFAULT_REGION") or getattr(session, "region_name", None) or "us-east-1"
    )
    given = _first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    endpoint = given or f"https://s3.{region}.amazonaws.com"
    # One request for each object, since not all services know deletions of many. A bucket with object lock accepts no
    # object without a checksum; the library needs this one anyway, to sign the request.
    config: dict[str, Any] = {"region": region, "disable_bulk_delete": True}
    if "AWS_CHECKSUM_ALGORITHM" not in os.environ:
        config["checksum_algorithm"] = "SHA256"
    store = made_of_environment(
        S3Store,
        bucket,
        config=config,
        client_options=client_options(endpoint, "AWS_CA_BUNDLE"),
        credential_provider=None if credentials is None else _ProfileKeys(credentials),
    )
    return ObstoreClient(store, endpoint)


def _profile_session() -> Any:
    """Returns boto3's session if credentials are to be read from a profile; None if the library finds them itself."""
    found_by_library = ("AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE")
    elsewhere = (
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    )
    files = [
        Path(os.environ.get(name) or default).expanduser()
        for name, default in (
            ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
            ("AWS_CONFIG_FILE", "~/.aws/config"),
        )
    ]
    if _first(*found_by_library):
        return None
    if not _profile() and (_first(*elsewhere) or not any(file.is_file() for file in files)):
        return None
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
    except ImportError:
        if not _profile() and not files[0].is_file():
            return None  # A configuration without keys; those of the machine's role may do.
        named = f"AWS_PROFILE={_profile()}" if _profile() else str(files[0])
        raise BadEnvironment(f"{named}, and no boto3 to read it") from None
    try:
        return boto3.Session()
    except BotoCoreError as error:
        raise BadEnvironment(str(error)) from error


def _profile() -> str | None:
    return _first("AWS_PROFILE", "AWS_DEFAULT_PROFILE")


def _first(*names: str) -> str | None:
    """Returns the value of the first of these variables that has one."""
    return next((value for name in names if (value := os.environ.get(name))), None)


class _ProfileKeys:
    """The keys of a profile, as the library asks for them; boto3 renews those that expire."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials

    def __call__(self) -> Any:
        keys = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(timezone.utc) + _KEYS_LAST,
        }
