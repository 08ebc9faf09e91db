"""Draws the timeline of a real drill, docs/images/timeline-*.svg, from its record, docs/timeline_record.json.

`python docs/timeline_picture.py` draws the record, and `--check` compares the pictures and the verdict on docs/index.md
with it. `--record` first makes a new record, by the drill of `make demo`, which takes minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pictures import PALETTES, draw, svg, text

ROOT = Path(__file__).parent.parent
RECORD = Path(__file__).with_name("timeline_record.json")
COMMAND = ["drill", "--workers", "2", "--preempt", "2", "--seed", "1", "--standby", "--json"]
SCRIPT = ["python", "examples/digits.py", "runs/digits"]

#: The spans of a report that are drawn alike.
KINDS = {
    "train": "train",
    **dict.fromkeys(("start-up", "compile", "restore", "replay", "leave", "idle"), "start"),
    **dict.fromkeys(("hold", "save"), "save"),
}

Record = dict[str, Any]


def make_record() -> Record:
    """Runs the drill, and returns what it and the report of its preempted run say; times from the start, in seconds."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}
    program = [sys.executable, "-m", "keras_preempt.cli.main"]
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "kept"
        drill = [*program, *COMMAND, "--keep", str(kept), "--", sys.executable, *SCRIPT[1:]]
        verdict = json.loads(_output(drill, quiet))
        (run,) = (kept / "preempted").iterdir()
        return record_of(verdict, json.loads(_output([*program, "report", str(run), "--json"], quiet)))


def record_of(drill: dict[str, Any], report: dict[str, Any]) -> Record:
    """Returns a record with the parts of a report that are drawn."""
    began = report["began"]

    def at(time: float) -> float:
        return round(time - began, 3)

    return {
        "command": " ".join(["keras-preempt", *COMMAND, "--", *SCRIPT]),
        "drill": drill,
        "seconds": at(report["ended"]),
        "starts": [{"first": each["first_step"], "last": each["last_step"]} for each in report["starts"]],
        "workers": [
            [[span["what"], at(span["began"]), at(span["ended"])] for span in worker["spans"]]
            for worker in report["workers"]
        ],
        "notices": [{"at": at(each["at"]), "worker": each["member"]} for each in report["notices"]],
        "saves": [{"at": at(each["at"]), "step": each["step"]} for each in report["saves"]],
    }


def _output(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env={**os.environ, **environment}
    )
    return done.stdout


def verdict(record: Record) -> str:
    """Returns the last line of the drill, as it prints it."""
    drill = record["drill"]
    strikes = ", ".join(f"w{each['worker']} at step {each['step']}" for each in drill["preemptions"])
    return (
        f"VERDICT: {drill['verdict']} ({drill['tensors_compared']} tensors and all other state; "
        f"{len(drill['preemptions'])} preemptions: {strikes}; {drill['preemptions'][0]['sent']}; "
        f"{drill['steps_lost']} steps lost)"
    )


def merged(spans: list[list[Any]]) -> list[tuple[str, float, float]]:
    """Returns the spans of a worker by kind, neighbours of one kind as one."""
    found: list[tuple[str, float, float]] = []
    for what, began, ended in spans:
        kind = KINDS[what]
        if found and found[-1][0] == kind:
            found[-1] = (kind, found[-1][1], ended)
        else:
            found.append((kind, began, ended))
    return found


def picture(record: Record, palette: dict[str, str], *, narrow: bool) -> str:
    """Returns the timeline: a row for each worker, notices above the rows, checkpoints across them.

    Args:
        record: What is drawn.
        palette: Colours by what they mean.
        narrow: For a phone: 360 pixels wide in place of 960.
    """
    width, left, right = (360, 34, 6) if narrow else (960, 44, 20)
    size, bar, top = (13, 30, 78) if narrow else (15, 34, 74)
    gap = 10
    scale = (width - left - right) / record["seconds"]
    rows = len(record["workers"])
    bottom = top + rows * bar + (rows - 1) * gap

    def x(seconds: float) -> float:
        return left + seconds * scale

    def row(worker: int) -> float:
        return top + worker * (bar + gap)

    parts: list[str] = []
    for worker, spans in enumerate(record["workers"]):
        y = row(worker)
        parts.append(text(0, y + bar / 2 + size / 3, f"w{worker}", palette["front"], size, weight=600))
        for kind, began, ended in merged(spans):
            parts.append(
                f'<rect x="{x(began):.1f}" y="{y:g}" width="{max((ended - began) * scale, 1):.1f}" '
                f'height="{bar}" fill="{palette[kind]}"/>'
            )
    for number, notice in enumerate(record["notices"]):
        place, y = x(notice["at"]), row(notice["worker"])
        words = f"SIGTERM to w{notice['worker']}"
        parts.append(_leader(place, 44 if narrow else 40, y, palette["notice"]))
        anchor = "middle" if place > len(words) * size * 0.3 + 4 and place < width - 70 else "start"
        at = place if anchor == "middle" else max(place - 30, 0)
        if place > width - 70:
            anchor, at = "end", width - right
        parts.append(text(at, 18, words, palette["notice"], size, anchor, 600))
        parts.append(text(at, 36, _saved(record, number, narrow), palette["soft"], size - 1, anchor))
    for save in record["saves"][: len(record["notices"])]:
        parts.append(_checkpoint(x(save["at"]), (top + bottom) / 2, palette))
    for start in record["starts"]:
        began, ended = _training(record, start)
        words = f"{start['last'] - start['first']} steps"
        middle = min((x(began) + x(ended)) / 2, width - len(words) * size * 0.29)
        parts.append(text(middle, bottom + size + 6, words, palette["front"], size, "middle", 600))
    parts += _axis(record, palette, x, bottom + size + 8, size)
    parts += _legend(palette, left, bottom + size + 68, size - 1, narrow)
    drill = record["drill"]
    result = f"{drill['steps']} steps, {drill['steps_lost']} lost, not one bit different"
    end = bottom + size + (122 if narrow else 68)
    anchor, place = ("start", left) if narrow else ("end", width - right)
    parts.append(text(place, end, result, palette["front"], size, anchor, 600))
    title = (
        f"Two workers, {len(drill['preemptions'])} preemptions, {drill['steps']} steps, "
        f"{drill['steps_lost']} steps lost, verdict {drill['verdict']}"
    )
    return svg(width, end + 14, title, parts)


def _training(record: Record, start: dict[str, int]) -> tuple[float, float]:
    """Returns when the first worker trained in a start: from and to, in seconds."""
    number = record["starts"].index(start)
    ends = [0.0, *(save["at"] for save in record["saves"])]
    spans = [span for span in record["workers"][0] if span[0] == "train"]
    inside = [span for span in spans if ends[number] <= span[1] < ends[number + 1]]
    return inside[0][1], inside[-1][2]


def _saved(record: Record, number: int, narrow: bool) -> str:
    step = record["saves"][number]["step"]
    return f"both save {step}" if narrow else f"both workers save step {step} and leave"


def _leader(x: float, top: float, bottom: float, colour: str) -> str:
    return (
        f'<path d="M{x:.1f} {top:g}V{bottom - 8:g}" stroke="{colour}" stroke-width="2"/>'
        f'<path d="M{x - 6:.1f} {bottom - 10:g}h12l-6 10z" fill="{colour}"/>'
    )


def _checkpoint(x: float, y: float, palette: dict[str, str]) -> str:
    return (
        f'<path d="M{x:.1f} {y - 9:g}l9 9l-9 9l-9 -9z" fill="{palette["save"]}" '
        f'stroke="{palette["back"]}" stroke-width="2"/>'
    )


def _axis(record: Record, palette: dict[str, str], x: Any, bottom: float, size: float) -> list[str]:
    parts = [f'<path d="M{x(0):.1f} {bottom + 8:g}H{x(record["seconds"]):.1f}" stroke="{palette["line"]}"/>']
    for seconds in range(0, int(record["seconds"]) + 1, 60 if x(60) - x(0) < 200 else 30):
        words = "0" if not seconds else f"{seconds} s" if seconds < 60 else f"{seconds / 60:g} min"
        parts.append(
            f'<path d="M{x(seconds):.1f} {bottom + 8:g}v5" stroke="{palette["line"]}"/>'
            + text(x(seconds), bottom + 28, words, palette["soft"], size - 2, "middle")
        )
    return parts


def _legend(palette: dict[str, str], left: float, y: float, size: float, narrow: bool) -> list[str]:
    entries = [
        ("train", "training"),
        ("start", "starting and leaving"),
        ("save", "one checkpoint"),
    ]
    parts = []
    x, start = left, left
    for colour, words in entries:
        length = 18 + len(words) * size * 0.56 + 20
        if narrow and x > start and x + length > 360:
            x, y = start, y + 22
        if colour == "save":
            parts.append(_checkpoint(x + 6, y - 5, palette))
        else:
            parts.append(
                f'<rect x="{x:g}" y="{y - 11:g}" width="12" height="12" rx="2" fill="{palette[colour]}"/>'
            )
        parts.append(text(x + 18, y, words, palette["soft"], size))
        x += length
    return parts


def pictures(record: Record) -> dict[str, str]:
    """Returns the pictures by file name."""
    return {
        f"timeline{'-narrow' if narrow else ''}-{scheme}.svg": picture(record, palette, narrow=narrow)
        for scheme, palette in PALETTES.items()
        for narrow in (False, True)
    }


def _verdict_is_shown(record: Record) -> bool:
    return verdict(record) in Path(__file__).with_name("index.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--record"]
    if arguments != sys.argv[1:]:
        RECORD.write_text(json.dumps(make_record(), indent=1) + "\n", encoding="utf-8")
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    status = draw(__file__, pictures(record), arguments)
    if not _verdict_is_shown(record):
        print(f"docs/index.md does not show the verdict of the record: {verdict(record)}", file=sys.stderr)
        status = 1
    sys.exit(status)
