"""Ways to change a checkpoint: by accident, and on purpose with all sums made right again.

Each takes the targets and a random generator, changes files of the newer checkpoint, and says what it did.
Those in `UNSEALED` must be noticed or leave what is read as it was. Behind those in `SEALED` stands somebody who
has made the sums right: what is read may be another checkpoint then, but reading it must stay harmless.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from keras_preempt.checkpoint.layout import MANIFEST, part_file
from tests.checkpoint.fuzz_targets import (
    MEMBERS,
    Targets,
    edit_part,
    fields_of,
    list_file,
    list_part,
    seal_document,
    seal_text,
)

Mutation = Callable[[Targets, Random], str]

TEXTS = (
    *(
        "",
        ".",
        "..",
        "../../outside",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "a\0b",
        ".tmp-1",
        "\ud800",
        "x\n\x1b[2Jy",
    ),
    *(
        "float32",
        "object",
        "F32",
        "BOOL",
        "__metadata__",
        "kernel",
        "kernel[0:9]",
        "[0:9]",
        "$float",
        "9" * 300,
    ),
    *("MANIFEST.json", "w00000.part.json", "w00001.local.safetensors", "w00000.mirrored-000.safetensors"),
    *("w00000.sharded.safetensors", "experts[0:3,0:2,0:3]", "experts", "mask"),
    *("step-00000003", "00001-0000", "00009-0000", "e" * 20_000, "é☃\U0001f600"),
)
NUMBERS = (
    *(0, 1, 2, 3, 7, 8, 9, -1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**30),
    *(10**400, 0.0, -0.0, 0.5, 1e308, 10**12, -(2**63)),
)


def odd(random: Random) -> Any:
    """A value that is seldom expected."""
    kind = random.randrange(6)
    if kind == 0:
        return random.choice(TEXTS)
    if kind <= 2:
        return random.choice(NUMBERS)
    if kind == 3:
        marks = {"$float": "nan"}, {"$object": 1}, {"$run": "x"}
        return random.choice((None, True, False, [], {}, [[]], *marks))
    if kind == 4:
        deep: Any = 1
        for _ in range(random.choice((5, 60, 99, 101, 300))):
            deep = [deep] if random.random() < 0.5 else {"a": deep}
        return deep
    return [random.choice(NUMBERS) for _ in range(random.choice((1, 2, 40)))]


def change(body: Any, random: Random) -> str:
    """Changes one thing, somewhere in JSON data; says what."""
    places = list(_places(body))
    holder, key = random.choice(places)
    action = random.randrange(8)
    value = holder[key]
    if action == 0:
        del holder[key]
    elif action == 1:
        holder[key] = copy.deepcopy(random.choice(places)[0])
    elif action == 2 and isinstance(holder, list):
        holder.insert(random.randrange(len(holder) + 1), copy.deepcopy(value))
    elif action == 2:
        holder[random.choice(TEXTS)] = odd(random)
    elif action == 3:
        other, its_key = random.choice(places)
        holder[key], other[its_key] = other[its_key], value
    elif action <= 5 and isinstance(value, (int, float)):
        holder[key] = value + random.choice((-8, -4, -1, 1, 4, 8, 2**40))
    elif action == 6 and isinstance(holder, list):
        random.shuffle(holder)
    else:
        holder[key] = odd(random)
    return f"{key!r:.40} by action {action}"


def _places(value: Any) -> Any:
    if not isinstance(value, (dict, list)):
        return
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        yield from _places(item)


# -- Without right sums ---------------------------------------------------------------------------------


def _any_file(targets: Targets, random: Random) -> Path:
    if random.random() < 0.3:  # The manifest often: no other file lists its sum.
        return targets.folder / MANIFEST
    return random.choice(sorted(targets.folder.iterdir()))


def flip_bits(targets: Targets, random: Random) -> str:
    path = _any_file(targets, random)
    data = bytearray(path.read_bytes())
    offsets = [random.randrange(len(data)) for _ in range(random.choice((1, 1, 2, 8)))]
    for offset in offsets:
        data[offset] ^= 1 << random.randrange(8)
    path.write_bytes(data)
    return f"{path.name}: bits at {offsets}"


def misspell(targets: Targets, random: Random) -> str:
    """Leaves the syntax of a document as it is: another digit, another letter."""
    path = _any_file(targets, random)
    data = bytearray(path.read_bytes())
    at = random.choice([number for number, byte in enumerate(data) if bytes([byte]).isalnum()])
    others = b"0123456789" if bytes([data[at]]).isdigit() else b"abcdefxyz"
    data[at] = random.choice([byte for byte in others if byte != data[at]])
    path.write_bytes(data)
    return f"{path.name}: another character at {at}"


def cut(targets: Targets, random: Random) -> str:
    path = _any_file(targets, random)
    size = random.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"{path.name}: cut to {size}"


def splice(targets: Targets, random: Random) -> str:
    path, other = _any_file(targets, random), _any_file(targets, random)
    data, source = bytearray(path.read_bytes()), other.read_bytes()
    begin, length = random.randrange(len(source)), random.choice((1, 8, 40, 200))
    at, removed = random.randrange(len(data)), random.choice((0, length))
    data[at : at + removed] = source[begin : begin + length]
    path.write_bytes(data)
    return f"{path.name}: {length} bytes of {other.name} at {at}, instead of {removed}"


def exchange(targets: Targets, random: Random) -> str:
    one, other = _any_file(targets, random), _any_file(targets, random)
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    return f"{one.name} and {other.name} exchanged"


def replace(targets: Targets, random: Random) -> str:
    """Puts something there that is no file, or a hole, or nothing."""
    path = _any_file(targets, random)
    path.unlink()
    kind = random.choice(("nothing", "empty", "folder", "pipe", "hole", "out", "device", "circle"))
    if kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "hole":
        path.touch()
        os.truncate(path, 1 << 40)
    elif kind != "nothing":
        path.symlink_to({"out": targets.outside, "device": "/dev/zero", "circle": path.name}[kind])
    return f"{path.name}: {kind}"


UNSEALED: tuple[Mutation, ...] = (*(flip_bits, misspell, cut, splice, exchange, replace),)


# -- With right sums ------------------------------------------------------------------------------------


def edit_manifest(targets: Targets, random: Random) -> str:
    path = targets.folder / MANIFEST
    body = fields_of(path)
    what = change(body, random)
    path.write_bytes(seal_document(body))
    return f"manifest: {what}"


def edit_part_list(targets: Targets, random: Random) -> str:
    name, told = part_file(random.randrange(MEMBERS)), []
    edit_part(targets.folder, name, lambda body: told.append(change(body, random)))
    return f"{name}: {told[0]}"


def edit_text(targets: Targets, random: Random) -> str:
    """A document that no JSON library would write: keys twice, NaN, spaces, numbers of many digits."""
    path = targets.folder / random.choice((MANIFEST, part_file(0), part_file(1)))
    text = json.dumps(fields_of(path), separators=(",", ":"))
    more = random.choice(
        (
            *('"format":1', '"x":NaN', '"x":-Infinity', f'"x":{"7" * 5000}', '"x":1e999', '"x":"\\ud800"'),
            *(
                f'"x":{"[" * 200}{"]" * 200}',
                f'"x":{"[" * 50_000}',
                '"x":\ufeff1',
                " ",
                '"format":7',
                '"step":5',
            ),
            *('"crc32c":1', '"x":{"a":1,"a":2}', '"x":"\t"', '"":""'),
        )
    )
    at = random.choice((1, len(text) - 1))
    text = f"{text[:at]}{more},{text[at:]}" if at == 1 else f"{text[:at]},{more}}}"
    path.write_bytes(seal_text(text))
    if path.name != MANIFEST:
        list_part(targets.folder, path.name)
    return f"{path.name}: {more[:40]!r} at {at}"


def edit_header(targets: Targets, random: Random) -> str:
    path = random.choice(sorted(targets.folder.glob("*.safetensors")))
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    what = change(header, random)
    text = json.dumps(header).encode()
    shown = random.choice((len(text), len(text), len(text), 0, 1, len(text) + 1, 2**40, 2**63, 2**64 - 1))
    path.write_bytes(shown.to_bytes(8, "little") + text + data[8 + length :])
    list_file(targets.folder, path.name)
    return f"{path.name}: header {what}, said to have {shown} of {len(text)} bytes"


def edit_data(targets: Targets, random: Random) -> str:
    path = random.choice(sorted(targets.folder.glob("*.safetensors")))
    data = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 3, 30))):
        data[random.randrange(len(data))] = random.randrange(256)
    path.write_bytes(data[: random.choice((len(data), len(data), random.randrange(len(data))))])
    list_file(targets.folder, path.name)
    return f"{path.name}: bytes"


SEALED: tuple[Mutation, ...] = (
    edit_manifest,
    edit_part_list,
    edit_part_list,
    edit_text,
    edit_header,
    edit_data,
)
