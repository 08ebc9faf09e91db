"""A store in a container of Azure Blob Storage.

Everything that reaches the container is in the environment, under the names that Azure's own tools use.
"""

from __future__ import annotations

import os
import re
from typing import Any

from obstore.store import AzureStore

from keras_preempt.checkpoint.storage.bucket import CONNECTIONS, BucketStore
from keras_preempt.checkpoint.storage.bucket_place import BucketPlace
from keras_preempt.checkpoint.storage.obstore_bucket import ObstoreClient, client_options, made_of_environment
from keras_preempt.checkpoint.storage.obstore_errors import BadEnvironment, CloudWords
from keras_preempt.checkpoint.storage.obstore_transfer import ObstoreObjects

_CONTAINER = r"([a-z0-9](?:-?[a-z0-9]){2,62})"
_SHORT = re.compile(rf"(?i:az)://{_CONTAINER}(?:/(.*))?", re.DOTALL)
_LONG = re.compile(
    rf"(?i:abfss)://{_CONTAINER}@([a-z0-9]{{3,24}})\.(?:dfs|blob)\.(core\.[a-z0-9.-]+)(?:/(.*))?", re.DOTALL
)

# The account and key of the emulators that Microsoft ships, published by it.
_DEVELOPMENT = (
    "AccountName=devstoreaccount1;AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/"
    "KBHBeksoGMGw==;BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1"
)

AZURE_WORDS = CloudWords(
    service="Azure Blob Storage",
    bucket="container",
    login=(
        "Give the machine a managed identity, use workload identity, set AZURE_STORAGE_ACCOUNT_KEY or "
        "AZURE_STORAGE_SAS_TOKEN, or set AZURE_USE_AZURE_CLI=true after `az login`."
    ),
    create=(
        "Check the names of the account and the container, or create it with `az storage container create --name "
        "{bucket}`."
    ),
    permission=(
        "Give this identity the role 'Storage Blob Data Contributor' on the container {bucket}, or make the signature "
        "(SAS) for reading, creating, listing and deleting, and look at the account's firewall."
    ),
    wrong_region="Check AZURE_STORAGE_ENDPOINT: the account is elsewhere.",
    locked=(
        "Old checkpoints are removed, which this container forbids for a while. Use one without an immutability "
        "policy, a legal hold or leases."
    ),
    tells_deletions=True,
)


class AzurePlace(BucketPlace):
    """A prefix of a container: ``az://container/prefix`` or ``abfss://container@account.dfs.core.windows.net/prefix``.

    The account of the first is that of the environment. `account` and `suffix` are None for it, else as in the URL.
    Raises ValueError if `url` names no place in a container.
    """

    def __init__(self, url: str) -> None:
        self.account: str | None = None
        self.suffix: str | None = None
        if (short := _SHORT.fullmatch(url)) is not None:
            container, root, prefix = short[1], f"az://{short[1]}", short[2]
        elif (long := _LONG.fullmatch(url)) is not None:
            container, self.account, self.suffix, prefix = long.groups()
            root = f"abfss://{container}@{self.account}.dfs.{self.suffix}"
            if self.account == _settings().get("account_name"):
                root = f"az://{container}"  # The same place has the same key, however it is spelled.
        else:
            raise ValueError(
                "Expected a place such as az://container/prefix or "
                f"abfss://container@account.dfs.core.windows.net/prefix. Received: {url!r}. Container names have 3 to "
                "63 lower-case letters, digits and single '-'; correct the name."
            )
        super().__init__(url, root, container, prefix or "")


class AzureBucketStore(BucketStore):
    """Files below a prefix of a container, or in a whole container. The options are those of `BucketStore`."""

    def __init__(
        self,
        url: str,
        *,
        staging_dir: str | os.PathLike[str] | None = None,
        connections: int = CONNECTIONS,
    ) -> None:
        place = AzurePlace(url)
        objects = ObstoreObjects(place, lambda: _connect(place), AZURE_WORDS)
        super().__init__(objects, staging_dir=staging_dir, connections=connections)


def _connect(place: AzurePlace) -> ObstoreClient:
    config = _settings()
    if place.account is not None:
        config["account_name"] = place.account
        config.setdefault("endpoint", f"https://{place.account}.blob.{place.suffix}")
    if "account_name" not in config:
        raise BadEnvironment(
            "no name of a storage account, which AZURE_STORAGE_ACCOUNT_NAME or an abfss:// URL gives"
        )
    endpoint = config.setdefault("endpoint", f"https://{config['account_name']}.blob.core.windows.net")
    store = made_of_environment(
        AzureStore,
        place.bucket,
        config=config,
        client_options=client_options(endpoint),
    )
    return ObstoreClient(store, endpoint)


def _settings() -> dict[str, Any]:
    """Returns what the environment says of the account; the library reads the other variables itself."""
    found: dict[str, Any] = {}
    if text := os.environ.get("AZURE_STORAGE_CONNECTION_STRING"):
        found.update(_connection_string(text))
    for option, names in (
        ("account_name", ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")),
        ("account_key", ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY")),
        ("endpoint", ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")),
    ):
        for name in reversed(names):
            if value := os.environ.get(name):
                found[option] = value
    return found


def _connection_string(text: str) -> dict[str, str]:
    fields = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    if fields.get("UseDevelopmentStorage", "").lower() == "true":
        return _connection_string(_DEVELOPMENT)
    options = {
        "AccountName": "account_name",
        "AccountKey": "account_key",
        "SharedAccessSignature": "sas_key",
        "BlobEndpoint": "endpoint",
    }
    found = {option: fields[name] for name, option in options.items() if name in fields}
    if "endpoint" not in found and "account_name" in found and "EndpointSuffix" in fields:
        protocol = fields.get("DefaultEndpointsProtocol", "https")
        found["endpoint"] = f"{protocol}://{found['account_name']}.blob.{fields['EndpointSuffix']}"
    return found
