from __future__ import annotations

import pytest

from keras_preempt.notices.metadata_address import (
    LINK_LOCAL,
    Address,
    aws_address,
    azure_address,
    gce_address,
    parse_address,
)


def test_without_variables_the_fixed_addresses_are_asked():
    for find in (gce_address, aws_address, azure_address):
        assert find({}) == Address(LINK_LOCAL, 80)


@pytest.mark.parametrize("name", ["GCE_METADATA_HOST", "GCE_METADATA_IP"])
def test_the_variables_of_google_override_the_address(name):
    assert gce_address({name: "127.0.0.1:8080"}) == Address("127.0.0.1", 8080)
    assert gce_address({name: ""}) == Address(LINK_LOCAL)


def test_the_host_of_google_comes_before_its_ip():
    assert gce_address({"GCE_METADATA_IP": "10.0.0.1", "GCE_METADATA_HOST": "10.0.0.2"}).host == "10.0.0.2"


def test_each_other_cloud_has_one_variable():
    assert aws_address({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://[fd00:ec2::254]/"}) == Address(
        "fd00:ec2::254"
    )
    assert azure_address({"KERAS_PREEMPT_AZURE_METADATA_HOST": "localhost:1"}) == Address("localhost", 1)
    assert aws_address({"KERAS_PREEMPT_AZURE_METADATA_HOST": "localhost:1"}) == Address(LINK_LOCAL)


@pytest.mark.parametrize(
    ("text", "address", "written"),
    [
        ("metadata.google.internal", Address("metadata.google.internal", 80), "metadata.google.internal"),
        ("http://127.0.0.1:1338/", Address("127.0.0.1", 1338), "127.0.0.1:1338"),
        ("HTTP://HOST", Address("host"), "host"),
        ("[::1]:81", Address("::1", 81), "[::1]:81"),
    ],
)
def test_addresses_are_read_and_written(text, address, written):
    assert parse_address(text, "NAME") == address
    assert str(address) == written


@pytest.mark.parametrize(
    "text",
    [
        "https://host",
        "host/path",
        "http://host/latest",
        "user:password@host",
        "host:port",
        "host:70000",
        ":80",
        "http://",
        "host name",
        "host?query",
        "[::1",
        " ",
    ],
)
def test_anything_else_is_refused_with_the_variables_name(text):
    with pytest.raises(ValueError, match="Expected NAME to be host, host:port or http"):
        parse_address(text, "NAME")
