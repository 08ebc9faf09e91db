from __future__ import annotations

import pytest

from keras_preempt.notices.aws import AWS
from keras_preempt.notices.azure import AZURE
from keras_preempt.notices.gce import GCE
from keras_preempt.notices.metadata_client import LINK_LOCAL, Address
from keras_preempt.notices.platform import CLOUDS


@pytest.mark.parametrize("cloud", CLOUDS.values(), ids=CLOUDS)
def test_without_variables_the_fixed_address_is_asked(cloud):
    assert cloud.address({}) == LINK_LOCAL == Address("169.254.169.254", 80)


@pytest.mark.parametrize("name", ["GCE_METADATA_HOST", "GCE_METADATA_IP"])
def test_the_variables_of_google_override_the_address(name):
    assert GCE.address({name: "127.0.0.1:8080"}) == Address("127.0.0.1", 8080)
    assert GCE.address({name: ""}) == LINK_LOCAL


def test_the_host_of_google_comes_before_its_ip():
    assert GCE.address({"GCE_METADATA_IP": "10.0.0.1", "GCE_METADATA_HOST": "10.0.0.2"}).host == "10.0.0.2"


def test_each_other_cloud_has_one_variable():
    assert (
        AWS.address({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://[fd00:ec2::254]/"}).host == "fd00:ec2::254"
    )
    assert AZURE.address({"KERAS_PREEMPT_AZURE_METADATA_HOST": "localhost:1"}) == Address("localhost", 1)
    assert AWS.address({"KERAS_PREEMPT_AZURE_METADATA_HOST": "localhost:1"}) == LINK_LOCAL


@pytest.mark.parametrize("cloud", CLOUDS.values(), ids=CLOUDS)
def test_whatever_a_machine_computes_on_it_is_one_of_its_clouds_machines(cloud):
    for accelerator in ("none", "gpu", "tpu"):
        assert cloud.machine(accelerator) in cloud.machines
