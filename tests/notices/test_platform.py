from __future__ import annotations

import re
from pathlib import Path

import pytest

from keras_preempt.notices.cloud import Accelerator
from keras_preempt.notices.detection import SERVICE_ACCOUNT, TPU_VARIABLES
from keras_preempt.notices.platform import (
    CLOUDS,
    GENERIC,
    MACHINES,
    ROLES,
    SCHEDULERS,
    Platform,
    compose,
    parse_name,
)
from keras_preempt.process.exit_codes import EXIT_RESTART, EXIT_RESTART_GCE, EXIT_RESTART_TPU

PAGE = Path(__file__).parents[2] / "docs" / "termination.md"


# -- The table -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accelerator", "name", "code", "lead"),
    [
        ("none", "gce-cpu", EXIT_RESTART_GCE, 60),
        ("gpu", "gce-gpu", EXIT_RESTART_GCE, 3600),
        ("tpu", "gce-tpu", EXIT_RESTART_TPU, 60),
    ],
)
def test_what_a_machine_of_compute_engine_computes_on_decides_about_its_end(
    accelerator: Accelerator, name: str, code: int, lead: float
) -> None:
    platform = compose(None, "gce", accelerator)
    assert platform.name == name
    assert platform.exit_code == code
    assert platform.maintenance_lead == lead
    assert platform.sources == ("signals", "gce", "coordination key")
    assert platform.waits_for_workers == (accelerator == "tpu")


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("machine", [None, *MACHINES])
def test_a_scheduler_on_a_cloud_hears_both_and_answers_the_scheduler(
    scheduler: str, machine: str | None
) -> None:
    platform = compose(scheduler, machine, "none")
    assert platform.exit_code == EXIT_RESTART
    assert not platform.waits_for_workers
    assert "signals" in platform.sources
    if machine is not None:
        assert platform.name == f"{scheduler}+{machine}"
        (cloud,) = (name for name in platform.sources if name in CLOUDS)
        assert machine.startswith(cloud)
        assert platform.maintenance_lead == MACHINES[machine].maintenance_lead


def test_of_an_unknown_platform_signals_are_heard_and_no_metadata_server_is_asked() -> None:
    assert compose(None, None, "none") == GENERIC == Platform()
    assert GENERIC.sources == ("signals", "coordination key")
    assert GENERIC.exit_code == EXIT_RESTART
    assert GENERIC.maintenance_lead == 0


def test_a_tpu_coordinator_leaves_with_42_once_its_workers_are_gone() -> None:
    for platform in (GENERIC, compose("kubernetes", "gce", "none")):
        coordinator = platform.for_tpu_coordinator()
        assert coordinator.exit_code == EXIT_RESTART_TPU == 42
        assert coordinator.waits_for_workers
        assert coordinator.sources == platform.sources
        assert platform.name in coordinator.name


# -- Named by the user -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("generic", "generic"),
        ("none", "generic"),
        ("gce", "gce-tpu"),
        ("gce-cpu", "gce-cpu"),
        ("AWS", "aws"),
        ("slurm", "slurm"),
        ("kubernetes+gce-gpu", "kubernetes+gce-gpu"),
        ("azure + lsf", "lsf+azure"),
        *((name, name) for name in (*MACHINES, *SCHEDULERS)),
    ],
)
def test_a_platform_can_be_named(text: str, name: str) -> None:
    platform = parse_name(text, "tpu")
    assert platform.name == name == parse_name(name, "none").name
    assert "KERAS_PREEMPT_PLATFORM says so" in platform.describe() or platform.name == "generic"


@pytest.mark.parametrize(
    "text", ["gcp", "aws+azure", "slurm+lsf", "generic+aws", "aws+", "gce-npu", "gce gpu", "tpu-coordinator"]
)
def test_a_platform_that_is_none_is_refused_with_the_names_that_there_are(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expected KERAS_PREEMPT_PLATFORM .*kubernetes.*gce-gpu") as error:
        parse_name(text)
    assert f"Received: {text!r}" in str(error.value)


def test_accelerator_follows_from_the_name_of_a_machine() -> None:
    assert parse_name("gce-gpu", "none").accelerator == "gpu"
    assert parse_name("gce-cpu", "gpu").accelerator == "none"
    assert parse_name("aws", "gpu").accelerator == "gpu"


# -- The page --------------------------------------------------------------------------------------------


def rows() -> dict[str, dict[str, str]]:
    """The table of the page: by platform, the cells by heading."""
    _, _, table = PAGE.read_text().partition("## Platforms")
    text, _, _ = table.partition("\n## ")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    headings = [cell.strip() for cell in lines[0].strip("|").split("|")]
    found = {}
    for line in lines[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found[cells[0].strip("`")] = dict(zip(headings, cells, strict=True))
    return found


def signs() -> dict[str, str]:
    """What the page says each platform is detected by."""
    _, _, listed = PAGE.read_text().partition("\nDetected by:\n")
    items = listed.partition("\n\n*")[0].split("\n- ")[1:]
    return {
        name.strip("`"): " ".join(sign.split()) for name, _, sign in (item.partition(": ") for item in items)
    }


def test_the_page_has_every_platform_and_no_other_and_says_what_a_tpu_coordinator_does() -> None:
    assert set(rows()) == set(signs()) == {*MACHINES, *SCHEDULERS, *ROLES, GENERIC.name}
    row = rows()["tpu-coordinator"]
    assert row["exit status"] == str(GENERIC.for_tpu_coordinator().exit_code)
    assert "coordination key" in row["notices heard"]


@pytest.mark.parametrize("name", [*MACHINES, *SCHEDULERS, GENERIC.name])
def test_the_page_says_what_the_code_does(name: str) -> None:
    row = rows()[name]
    platform = parse_name(name)
    assert row["exit status"] == str(platform.exit_code)
    assert row["notices heard"] == ", ".join(platform.sources)
    if platform.maintenance_lead:
        assert f"{platform.maintenance_lead:g} s for maintenance" in row["lead time"]
    else:
        assert "maintenance" not in row["lead time"]


def test_the_page_names_every_sign_of_a_scheduler_and_of_an_accelerator() -> None:
    for name, row in SCHEDULERS.items():
        assert row.variables
        for sign in row.variables:
            assert f"`{sign}`" in signs()[name]
    assert f"`/{SERVICE_ACCOUNT}`" in signs()["kubernetes"]
    for sign in TPU_VARIABLES:
        assert f"`{sign}`" in signs()["gce-tpu"]


def test_every_lead_time_has_a_source_that_is_linked() -> None:
    text = PAGE.read_text()
    listed = set(re.findall(r"^(\d+)\. \[.*\]\(https://", text[text.index("## Sources") :], re.MULTILINE))
    cited = set(re.findall(r"\[(\d+)\]", text.partition("\nDetected by:\n")[0]))
    assert cited == listed
