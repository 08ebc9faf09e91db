"""Reads checkpoints with json, crc32c and the safetensors library alone: nothing of the package has a say here."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import google_crc32c
import numpy as np
import safetensors.numpy

Read = Callable[[str], bytes | None]

MANIFEST = "MANIFEST.json"


def tensors_of(attempt: str) -> dict[str, Any]:
    """What an attempt of the campaign saves, all different from what any other attempt does."""
    base = mark_of(attempt)
    return {
        "kernel": np.arange(24, dtype=np.float32).reshape(6, 4) + base,
        "bias": np.arange(8, dtype=np.float64) - base,
        "iterations": np.asarray(base, np.int64),
        "seed": np.asarray([base, 7], np.uint32),
    }


def local_of(attempt: str, member: int) -> dict[str, Any]:
    return {"mean": np.full(3, mark_of(attempt) + member / 8, np.float32)}


def state_of(attempt: str, member: int) -> dict[str, Any]:
    return {"attempt": attempt, "member": member}


def mark_of(attempt: str) -> int:
    incarnation, round = attempt.split("-")
    return int(incarnation) * 1000 + int(round)


def order_of(folder: str) -> tuple[int, int]:
    """By which two attempts are compared: incarnation, then round."""
    incarnation, round = folder.split("/")[1].split("-")
    return int(incarnation), int(round)


def step_of(folder: str) -> int:
    return int(folder.split("/")[0].removeprefix("step-"))


def problem_of(read: Read, folder: str) -> str | None:
    """Says what is wrong with the checkpoint whose manifest lies in a folder; None if nothing is."""
    try:
        return _problem(read, folder)
    except (ValueError, KeyError, TypeError) as error:
        return f"it cannot be read: {error!r}"


def _problem(read: Read, folder: str) -> str | None:
    manifest = _document(read(f"{folder}/{MANIFEST}"), "the manifest")
    attempt = folder.split("/")[1]
    if (manifest["step"], manifest["attempt"]) != (step_of(folder), attempt):
        return f"the manifest is that of {manifest['attempt']} at step {manifest['step']}"
    found: dict[str, list[tuple[int, int]]] = {}
    members = [ref["member"] for ref in manifest["parts"]]
    if sorted(members + manifest["missing"]) != list(range(manifest["members"])):
        return "parts and missing ones are not all members"
    for ref in manifest["parts"]:
        part = _document(_listed(read, folder, ref), ref["name"])
        if part["state"] != state_of(attempt, ref["member"]) or part["position"] != manifest["position"]:
            return f"{ref['name']} is the part of another save: {part['state']}, {part['position']}"
        wrong = _wrong_files(read, folder, part, attempt, found)
        if wrong is not None:
            return wrong
    for name, array in tensors_of(attempt).items():
        covered = sorted(element for start, stop in found.pop(name, []) for element in range(start, stop))
        if covered != list(range(array.size)):
            return f"of {name} there are the elements {covered}"
    return f"there is more than the model has: {sorted(found)}" if found else None


def _wrong_files(
    read: Read, folder: str, part: dict[str, Any], attempt: str, found: dict[str, list[tuple[int, int]]]
) -> str | None:
    stored = {each["name"]: safetensors.numpy.load(_listed(read, folder, each)) for each in part["files"]}
    wanted = tensors_of(attempt)
    for piece in part["mirrored"]:
        start, stop, name = piece["start"], piece["stop"], piece["tensor"]
        whole = (start, stop) == (0, wanted[name].size)
        array = stored[piece["file"]][name if whole else f"{name}[{start}:{stop}]"]
        if not np.array_equal(array.reshape(-1), wanted[name].reshape(-1)[start:stop]):
            return f"{name}[{start}:{stop}] in {piece['file']} is not what was saved"
        found.setdefault(name, []).append((start, stop))
    local = stored[part["local"]]
    for name, array in local_of(attempt, part["member"]).items():
        if not np.array_equal(local.pop(name), array):
            return f"{name} in {part['local']} is not what was saved"
    return f"{part['local']} holds more than was saved" if local else None


def _listed(read: Read, folder: str, entry: dict[str, Any]) -> bytes:
    data = read(f"{folder}/{entry['name']}")
    if data is None or (len(data), google_crc32c.value(data)) != (entry["size"], entry["crc32c"]):
        raise ValueError(f"{entry['name']} is {'missing' if data is None else 'another'}")
    return data


def _document(data: bytes | None, what: str) -> dict[str, Any]:
    if data is None:
        raise ValueError(f"{what} is missing")
    document: dict[str, Any] = json.loads(data)
    body = data[: data.rindex(b',"crc32c":')] + b"}"
    if google_crc32c.value(body) != document["crc32c"]:
        raise ValueError(f"{what} was changed")
    return document
