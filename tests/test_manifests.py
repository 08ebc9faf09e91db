"""What starts a job on a cluster says what the package relies on, in words that the cluster knows."""

from __future__ import annotations

import configparser
import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kubeflow_trainer_api.models.io_k8s_api_core_v1_service_account import (
    IoK8sApiCoreV1ServiceAccount as ServiceAccount,
)
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet as JobSet

from keras_preempt.checkpoint import machine_memory
from keras_preempt.cluster import tf_config_from_jobset
from keras_preempt.notices.platform import SCHEDULERS
from keras_preempt.process import environment
from keras_preempt.process.exit_codes import EXIT_NOT_SAVED, EXIT_RESTART, EXIT_RESTART_GCE, EXIT_WORKER_LOST

EXAMPLES = Path(__file__).parents[1] / "examples"
SCHEMAS = Path(__file__).parent / "schemas"
SCRIPT = "/app/train_on_cluster.py"

EKS_SPOT = ("eks.amazonaws.com/capacityType", "SPOT")
AKS_SPOT = ("kubernetes.azure.com/scalesetpriority", "spot")


@pytest.fixture
def jobset() -> Any:
    return yaml.safe_load((EXAMPLES / "kubernetes" / "jobset.yaml").read_text())


@pytest.fixture
def custom_job() -> Any:
    return yaml.safe_load((EXAMPLES / "vertex" / "custom_job.yaml").read_text())


def check_custom_job(config: Any) -> None:
    schema = json.loads((SCHEMAS / "vertex_custom_job_spec.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(config)


def job_of(jobset: Any) -> Any:
    (replicated_job,) = jobset["spec"]["replicatedJobs"]
    return replicated_job["template"]["spec"]


def test_jobset_has_no_field_that_jobset_does_not_know(jobset):
    # The models drop what they do not know, so nothing is lost on the way through them.
    assert JobSet.from_dict(copy.deepcopy(jobset)).to_dict() == jobset


@pytest.mark.parametrize(
    "path",
    [
        ["spec", "failurePolicy"],
        ["spec", "replicatedJobs", 0],
        ["spec", "replicatedJobs", 0, "template", "spec"],
    ],
)
def test_misspelt_field_of_a_jobset_would_be_seen(jobset, path):
    place = jobset
    for key in path:
        place = place[key]
    place["misspelt"] = 1
    assert JobSet.from_dict(copy.deepcopy(jobset)).to_dict() != jobset


def test_jobset_restarts_all_workers_for_ever_after_a_preemption_and_not_after_a_crash(jobset):
    job, policy = job_of(jobset), jobset["spec"]["failurePolicy"]
    by_code, by_condition = job["podFailurePolicy"]["rules"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert by_code["action"] == by_condition["action"] == "FailJob"
    assert by_code["onExitCodes"]["containerName"] == container["name"]
    assert by_code["onExitCodes"]["operator"] == "In"
    free = by_code["onExitCodes"]["values"]
    assert EXIT_RESTART in free
    # A worker that crashes at every start makes the others leave with EXIT_WORKER_LOST: that has to be counted.
    assert not {0, 1, EXIT_NOT_SAVED, EXIT_WORKER_LOST} & set(free)
    assert by_condition["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    (rule,) = policy["rules"]
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])
    assert policy["restartStrategy"] == "BlockingRecreate"
    assert policy["maxRestarts"] >= 1
    # Kubernetes refuses a podFailurePolicy without it; a worker must never come back alone.
    assert pod["restartPolicy"] == "Never"
    assert job["backoffLimit"] == 0


def test_every_pod_of_the_jobset_finds_the_same_workers(jobset):
    job = job_of(jobset)
    assert job["completionMode"] == "Indexed"
    assert job["parallelism"] == job["completions"]
    (container,) = job["template"]["spec"]["containers"]
    (replicated_job,) = jobset["spec"]["replicatedJobs"]
    assert {port["containerPort"] for port in container["ports"]} == {2222}
    labels = {  # As the controller of JobSet writes them.
        "jobset.sigs.k8s.io/jobset-name": jobset["metadata"]["name"],
        "jobset.sigs.k8s.io/replicatedjob-name": replicated_job["name"],
        "jobset.sigs.k8s.io/replicatedjob-replicas": str(replicated_job["replicas"]),
        "jobset.sigs.k8s.io/job-index": "0",
    }
    found = []
    for pod in range(job["completions"]):
        variables = {"JOB_COMPLETION_INDEX": str(pod)}
        for entry in container["env"]:
            if "value" in entry:
                variables[entry["name"]] = entry["value"]
            else:
                field = entry["valueFrom"]["fieldRef"]["fieldPath"]
                variables[entry["name"]] = labels[field.removeprefix("metadata.labels['").removesuffix("']")]
        found.append(tf_config_from_jobset(variables))
    assert [config["task"]["index"] for config in found] == [0, 1]
    assert {json.dumps(config["cluster"]) for config in found} == {
        '{"worker": ["digits-worker-0-0.digits:2222", "digits-worker-0-1.digits:2222"]}'
    }


def patch(jobset: Any, name: str) -> None:
    """Applies one of the JSON patches beside the manifest, and looks whether JobSet still knows every field."""
    for change in yaml.safe_load((EXAMPLES / "kubernetes" / name).read_text()):
        *path, last = change["path"].split("/")[1:]
        place = jobset
        for key in path:
            place = place[int(key)] if isinstance(place, list) else place[key]
        if last == "-":
            assert change["op"] == "add"
            place.append(change["value"])
        else:
            # An "add" would replace what is there, and the other two fail if it is not.
            assert change["op"] == "add" if last not in place else change["op"] in ("replace", "remove")
            place.pop(last, None)
            if change["op"] != "remove":
                place[last] = change["value"]
    test_jobset_has_no_field_that_jobset_does_not_know(jobset)


def without_place(jobset: Any) -> Any:
    """Returns the manifest without what says where it runs and where it saves."""
    template = job_of(jobset)["template"]
    template.pop("metadata", None)
    for field in ("nodeSelector", "tolerations"):
        template["spec"].pop(field, None)
    (container,) = template["spec"]["containers"]
    del container["args"]
    container["env"] = [
        entry for entry in container["env"] if not entry["name"].startswith(("AWS_", "AZURE_"))
    ]
    return jobset


@pytest.mark.parametrize(
    ("cloud", "spot", "taint", "scheme", "variable", "annotation"),
    [
        (*("eks", EKS_SPOT, [], "s3"), "AWS_REGION", "eks.amazonaws.com/role-arn"),
        (
            *("aks", AKS_SPOT, [AKS_SPOT], "az"),
            *("AZURE_STORAGE_ACCOUNT_NAME", "azure.workload.identity/client-id"),
        ),
    ],
)
def test_a_patch_takes_the_job_to_the_spot_nodes_and_the_bucket_of_another_cloud(
    jobset, cloud, spot, taint, scheme, variable, annotation
):
    rest = copy.deepcopy(jobset)
    patch(jobset, f"{cloud}.yaml")
    pod = job_of(jobset)["template"]["spec"]
    assert pod["nodeSelector"] == dict([spot])
    assert [(each["key"], each["value"]) for each in pod.get("tolerations", [])] == taint
    (container,) = pod["containers"]
    (place,) = container["args"]
    assert place.startswith(f"{scheme}://")
    assert container["env"][-1]["name"] == variable
    account = yaml.safe_load((EXAMPLES / "kubernetes" / f"{cloud}-account.yaml").read_text())
    assert ServiceAccount.from_dict(copy.deepcopy(account)).to_dict() == account
    assert account["metadata"]["name"] == pod["serviceAccountName"]
    assert list(account["metadata"]["annotations"]) == [annotation]
    # Only a pod with this label gets the identity of its account on AKS.
    labels = {"azure.workload.identity/use": "true"}
    assert job_of(jobset)["template"].get("metadata") == ({"labels": labels} if cloud == "aks" else None)
    # All that makes a preempted job come back stays as it is.
    assert without_place(jobset) == without_place(rest)


def test_saves_in_memory_go_to_a_volume_that_outlives_the_pods(jobset):
    patch(jobset, "memory.yaml")
    pod = job_of(jobset)["template"]["spec"]
    ((volume,), (container,)) = pod["volumes"], pod["containers"]
    assert volume["hostPath"] == {"path": machine_memory.DEFAULT, "type": "Directory"}
    mounted = {"name": volume["name"], "mountPath": "/memory"}
    assert container["volumeMounts"] == [mounted]
    assert {"name": environment.MEMORY_DIR, "value": mounted["mountPath"]} in container["env"]


def test_python_is_the_first_process_of_every_container(jobset, custom_job):
    (container,) = job_of(jobset)["template"]["spec"]["containers"]
    dockerfile = (EXAMPLES / "Dockerfile").read_text()
    entry = re.search(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE)
    assert entry is not None
    commands = [container["command"], json.loads(entry[1])]
    commands += [pool["containerSpec"]["command"] for pool in custom_job["workerPoolSpecs"]]
    assert commands == [["python", SCRIPT]] * 4
    for name in re.findall(r"examples/(\S+\.py)", dockerfile):
        assert (EXAMPLES / name).is_file()


def test_vertex_job_is_one_and_restarts_as_a_whole(custom_job):
    check_custom_job(custom_job)
    assert custom_job["scheduling"]["restartJobOnWorkerRestart"] is True
    # With it set, restartJobOnWorkerRestart counts for nothing.
    assert not custom_job["scheduling"].get("disableRetries")
    assert custom_job["workerPoolSpecs"][0]["replicaCount"] == 1, "Vertex AI allows one chief"


def test_misspelt_field_of_a_vertex_job_would_be_seen(custom_job):
    custom_job["scheduling"]["restartJobOnWorkerRestarts"] = True
    with pytest.raises(jsonschema.ValidationError):
        check_custom_job(custom_job)


def test_slurm_tells_the_tasks_when_their_time_is_over_and_may_requeue():
    script = (EXAMPLES / "slurm" / "train.sbatch").read_text()
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(\S*)$", script, re.MULTILINE))
    assert f"export {SCHEDULERS['slurm'].end_variable}=" in script.partition("\nsrun ")[0]
    assert "signal" not in options, "it would come earlier than it has to"
    assert '"SIGUSR1"' in (EXAMPLES / "train_on_cluster.py").read_text(), "for whoever adds --signal=USR1@300"
    assert "requeue" in options
    assert options["open-mode"] == "append"


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(EXAMPLES / "gce" / "train.service")
    return parser["Service"]


def test_systemd_starts_the_training_again_after_a_preemption_and_leaves_it_time_to_save():
    service = unit()
    assert {str(EXIT_RESTART), str(EXIT_RESTART_GCE), "SIGTERM"} <= set(
        service["RestartForceExitStatus"].split()
    )
    assert service["Restart"] == "on-failure"
    assert (service["KillSignal"], service["KillMode"]) == ("SIGTERM", "mixed")
    assert 15 <= int(service["TimeoutStopSec"]) < 30, "Compute Engine gives 30 s"
    assert service["ExecStart"].split()[0].endswith("/python"), "a shell would keep the signal to itself"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_every_line_of_the_unit(tmp_path):
    # It also looks for the program, which is on the machine that this is for.
    text = (
        (EXAMPLES / "gce" / "train.service").read_text().replace("/opt/train/venv/bin/python", sys.executable)
    )

    def said(written: str) -> str:
        file = tmp_path / "train.service"
        file.write_text(written)
        verify = ["systemd-analyze", "verify", "--man=no", str(file)]
        return subprocess.run(verify, capture_output=True, text=True, timeout=60).stderr

    assert "train.service" not in said(text)
    misspelt = said(text.replace("RestartSec=", "RestartSecs="))
    assert "RestartSecs" in misspelt, "systemd-analyze says nothing here at all"


@pytest.mark.parametrize("platform", ["gce", "kubernetes", "slurm", "tpu_vm", "vertex"])
def test_every_platform_says_what_restarts_what_and_what_was_not_run(platform):
    page = EXAMPLES / platform / "README.md"
    text = page.read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert {"Exit status", "What was checked"} <= set(headings)
    assert re.search(r"not run (on|under) |Nothing was run on ", text)
    for link in re.findall(r"\]\((?!https:)([^)#]+)\)", text):
        assert (page.parent / link).resolve().is_file(), link
    assert f"../examples/{platform}/README.md" in (EXAMPLES.parent / "docs" / "clusters.md").read_text()
