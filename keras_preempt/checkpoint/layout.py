"""The names of a run's files in its directory.

::

    run.json                                      the identity of the run
    incarnations/00007.json                       claimed by each start: the fencing number
    models/00007.json                             the architecture that this start trains, for an export
    save-request.json                             until the job has seen it: somebody asks for a save now
    events/...                                    what happened
    step-00001234/<attempt>/w00000.*.safetensors  tensors of one worker
    step-00001234/<attempt>/w00000.part.json      the list of those files, written after they are durable
    step-00001234/<attempt>/MANIFEST.json         written last: it exists <=> the checkpoint exists

An attempt is ``<incarnation>-<round>``. The manifest belongs to the attempt, not to the step, because one
step can be saved at several positions (last batch, validation, next epoch), and because a checkpoint that
turned out broken must neither block nor be overwritten by a new one of the same step.
"""

from __future__ import annotations

import re

RUN = "run.json"
INCARNATIONS = "incarnations"
EVENTS = "events"
MODELS = "models"
MANIFEST = "MANIFEST.json"
SAVE_REQUEST = "save-request.json"

LATEST_INCARNATION = 10**9 - 1
"""The highest number that names of claims and attempts have room for."""

_STEP = re.compile(r"step-([0-9]{8,18})")
_ATTEMPT = re.compile(r"([0-9]{5,9})-([0-9]{4,9})")
_INCARNATION = re.compile(r"([0-9]{5,9})\.json")
_PART_FILE = re.compile(
    r"w[0-9]{5,9}\.(part\.json|local\.safetensors|(mirrored|sharded)(-[0-9]{3,9})?\.safetensors)"
)


def step_directory(step: int) -> str:
    if step < 0:
        raise ValueError(f"Expected a step of 0 or more. Received: {step}. Pass the number of a step.")
    return f"step-{step:08d}"


def attempt_name(incarnation: int, round: int) -> str:
    name = f"{incarnation:05d}-{round:04d}"
    if _ATTEMPT.fullmatch(name) is None:
        raise ValueError(
            f"Expected an incarnation and a round of 0 or more. Received: {incarnation} and {round}. "
            "Pass the numbers that the run was given."
        )
    return name


def attempt_directory(step: int, attempt: str) -> str:
    parse_attempt(attempt)
    return f"{step_directory(step)}/{attempt}"


def parse_step(folder: str) -> int | None:
    """Returns the step of a step's folder, None for any other name."""
    match = _STEP.fullmatch(folder)
    # Only the name that step_directory gives: 'step-000000001' is not ours.
    return int(match.group(1)) if match and step_directory(int(match.group(1))) == folder else None


def step_of(checkpoint: str) -> int | None:
    """Returns the step of a checkpoint's folder, such as "step-00000070/00001-0000"; None for any other name."""
    return parse_step(checkpoint.partition("/")[0])


def parse_attempt(attempt: str) -> tuple[int, int]:
    """Returns incarnation and round of an attempt; raises `ValueError` for any other name."""
    if not is_attempt(attempt):
        raise ValueError(
            "Expected an attempt named <incarnation>-<round>, such as '00001-0001'. "
            f"Received: {attempt!r:.100}. Make it with attempt_name."
        )
    incarnation, round = attempt.split("-")
    return int(incarnation), int(round)


def is_attempt(name: str) -> bool:
    match = _ATTEMPT.fullmatch(name)
    # Only the name that attempt_name gives, so that no two names mean one attempt.
    return match is not None and attempt_name(int(match.group(1)), int(match.group(2))) == name


def is_attempt_file(name: str) -> bool:
    """Returns whether a file in an attempt's folder has a name that a save gives."""
    return name == MANIFEST or _PART_FILE.fullmatch(name) is not None


def incarnation_file(incarnation: int) -> str:
    return f"{INCARNATIONS}/{incarnation:05d}.json"


def parse_incarnation(file: str) -> int | None:
    """Returns the number of a claim's file name (its last component), None for any other name."""
    match = _INCARNATION.fullmatch(file)
    number = int(match.group(1)) if match else None
    return number if number is not None and incarnation_file(number) == f"{INCARNATIONS}/{file}" else None


def model_file(incarnation: int) -> str:
    """Returns the name of the file with the architecture of a start; `parse_incarnation` reads its last component."""
    return f"{MODELS}/{incarnation:05d}.json"


def part_file(member: int) -> str:
    return f"w{member:05d}.part.json"


def tensor_file(member: int, kind: str, index: int | None = None) -> str:
    """Returns the file name of tensors that a worker writes: of the kind "mirrored", "sharded" or "local".

    `index` counts those of a kind if there are several.
    """
    return f"w{member:05d}.{kind}{'' if index is None else f'-{index:03d}'}.safetensors"
