"""The policy of the page on buckets gives an account all that a job needs, and nothing that it does not need."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest

from keras_preempt.checkpoint.storage.s3 import S3BucketStore
from tests.docs.pages import ROOT, blocks_of

PAGE = "buckets.md"
BUCKET = "my-runs"  # As on the page.


ACTIONS = {
    None: [],
    "s3:PutObject": ["create"],
    "s3:GetObject": ["read"],
    "s3:ListBucket": ["list"],
    "s3:DeleteObject": ["delete"],
}
"""What a job cannot do without each action of the policy."""

#: moto enforces policies after so many requests: those that make the bucket, and a user with key and policy for each.
SERVER = f"""
import os, sys
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "{1 + 3 * len(ACTIONS)}"
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("http://%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""

Accounts = dict[str | None, dict[str, str]]


@pytest.fixture(scope="module")
def accounts() -> Iterator[Accounts]:
    """The variables of an account for each action that its policy lacks, on one server of S3 and IAM."""
    command = [sys.executable, "-c", SERVER]
    output: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, stdin=subprocess.PIPE, **output) as process:
        assert process.stdout is not None
        try:
            yield accounts_at(process.stdout.readline().strip())
        finally:
            process.terminate()


def accounts_at(moto: str) -> Accounts:
    first = {"aws_access_key_id": "first", "aws_secret_access_key": "first", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=moto, **first).create_bucket(Bucket=BUCKET)
    iam = boto3.client("iam", endpoint_url=moto, **first)
    made: Accounts = {}
    for number, action in enumerate(ACTIONS):
        name = f"trainer-{number}"
        iam.create_user(UserName=name)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        given = json.dumps(policy() if action is None else without(action))
        iam.put_user_policy(UserName=name, PolicyName=BUCKET, PolicyDocument=given)
        made[action] = {
            "AWS_ENDPOINT_URL": moto,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }
    return made


def policy() -> Any:
    (block,) = (
        block for block in blocks_of(PAGE, (ROOT / "docs" / PAGE).read_text()) if block.language == "json"
    )
    return json.loads(block.code)


def without(action: str) -> Any:
    """Returns the policy with one action less."""
    found = copy.deepcopy(policy())
    for statement in found["Statement"]:
        given = statement["Action"]
        actions = [each for each in ([given] if isinstance(given, str) else given) if each != action]
        statement["Action"] = actions or ["s3:GetBucketLocation"]
    assert found != policy(), action
    return found


@pytest.mark.parametrize("action", ACTIONS)
def test_the_policy_of_the_page_is_enough_and_each_of_its_actions_is_needed(
    action: str | None, accounts: Accounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in accounts[action].items():
        monkeypatch.setenv(name, value)
    with closing(S3BucketStore(f"s3://{BUCKET}/run", staging_dir=tmp_path)) as store:
        assert [what for what, error in store.check_access() if error is not None] == ACTIONS[action]
        if action is None:
            store.create("file", b"content")
            assert store.read("file", limit=10) == b"content"
            assert store.children("") == ["file"]
            store.delete("file")
