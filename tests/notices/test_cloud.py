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


def test_a_clouds_own_variables_override_the_address_and_googles_host_comes_before_its_ip():
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
        assert GCE.address({name: "127.0.0.1:8080"}) == Address("127.0.0.1", 8080)
        assert GCE.address({name: ""}) == LINK_LOCAL
    assert GCE.address({"GCE_METADATA_IP": "10.0.0.1", "GCE_METADATA_HOST": "10.0.0.2"}).host == "10.0.0.2"
    aws = AWS.address({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://[fd00:ec2::254]/"})
    assert aws.host == "fd00:ec2::254"
    azure = {"KERAS_PREEMPT_AZURE_METADATA_HOST": "localhost:1"}
    assert AZURE.address(azure) == Address("localhost", 1)
    assert AWS.address(azure) == LINK_LOCAL


@pytest.mark.parametrize("cloud", CLOUDS.values(), ids=CLOUDS)
def test_whatever_a_machine_computes_on_it_is_one_of_its_clouds_machines(cloud):
    for accelerator in ("none", "gpu", "tpu"):
        assert cloud.machine(accelerator) in cloud.machines
