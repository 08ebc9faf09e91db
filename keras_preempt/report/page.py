"""A report as one page of HTML with a timeline in SVG, which needs no script, no server and no network.

Everything that comes from events is escaped: a directory is data, which anybody may have written. Its links lead to
other places of the page only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from html import escape
from importlib import resources

from keras_preempt import __version__
from keras_preempt.process.words import counted
from keras_preempt.report import journal
from keras_preempt.report.account import Account
from keras_preempt.report.tables import Table, places, starts, times, used
from keras_preempt.report.timeline import MOST_ROWS, NARROW, WIDE, timeline
from keras_preempt.report.wording import clock, headline, length, lost, lost_steps, moment, percent, speed
from keras_preempt.report.worker_run import End

STYLE = resources.files("keras_preempt.report").joinpath("page.css").read_text("utf-8")
_CLASSES = {end: "silent" if end is End.SILENT else end.value for end in End}


def page(account: Account, directory: str) -> str:
    title = escape(directory)
    everything = journal.entries(account)
    losing = {start.number: journal.loss_links(account, start) for start in account.starts if start.lost_why}
    needed = {key for links in losing.values() for key, _ in links}
    events = journal.shortened(everything, needed)
    anchors = {entry.key for entry in events}
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        # If anything slips through, a browser still loads and runs none of it.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{title}: training report</title><style>{STYLE}</style></head><body>",
        f"<h1><small>Training report</small>{title}</h1>",
        _ended(account),
        _figures(account),
    ]
    for start in account.starts:
        links = [
            f'<a href="#{escape(key)}">{escape(words)}</a>'
            for key, words in losing.get(start.number, ())
            if key in anchors
        ]
        if start.lost_why:
            parts.append(f'<p class="warn">{escape(lost_steps(start))}<br>{" · ".join(links)}</p>')
    parts += [
        "<h2>Timeline</h2>",
        timeline(account, WIDE, anchors),
        timeline(account, NARROW, anchors),
        _legend(account),
        _table(starts(account)),
        _table(times(account)),
        "<h2>What happened</h2>",
    ]
    if left_out := len(everything) - len(events):
        parts.append(f'<p class="soft">{counted(left_out, "older event")} not shown.</p>')
    parts += [f'<ol class="events">{"".join(_items(account, events, needed))}</ol>', _table(places(account))]
    if account.gaps:
        gaps = "".join(f"<li>{escape(gap)}</li>" for gap in account.gaps)
        parts.append(f'<h2>What is missing</h2><ul class="warn">{gaps}</ul>')
    parts += [
        f'<p class="soft">Made by keras-preempt {__version__}. Times are UTC; goodput is the part of the wall time '
        "in which steps were trained that did not have to be run again. The speed is known where an epoch, a "
        "validation or a save began, and is the mean in between.</p>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _ended(account: Account) -> str:
    last, words = account.starts[-1], headline(account)
    why = f"<span>{escape(last.why)}</span><br>" if last.why else ""
    return (
        f'<p class="ended {_CLASSES[last.end]}"><b>{escape(words[:1].upper() + words[1:])}</b>{why}<span class="soft">'
        f"{moment(account.began)} to {clock(account.ended, account.began)} UTC</span></p>"
    )


def _figures(account: Account) -> str:
    figures = {
        "goodput": percent(account.goodput),
        "steps lost": lost(account),
        "steps done": f"{account.step:,}",
        "steps a second": "-" if account.speed is None else speed(account.speed),
        "wall time": length(account.ended - account.began),
    }
    boxes = (f"<div><b>{escape(value)}</b><span>{name}</span></div>" for name, value in figures.items())
    return f'<div class="figures">{"".join(boxes)}</div>'


def _legend(account: Account) -> str:
    keys = {
        what: f'<rect class="{what}" width="14" height="12" rx="2"/>'
        for what in used(account)
        if what != "idle"
    }
    if account.notices:
        keys["a notice"] = '<path class="notice" d="M7 11l-4.5 -8h9z"/>'
    if account.saves:
        keys["a checkpoint is committed"] = '<circle class="saved" cx="7" cy="6" r="3"/>'
    if account.lost and account.speed is not None:
        keys["steps that were lost"] = '<rect class="area lost" width="14" height="12"/>'
    items = (
        f'<li><span class="key"><svg width="14" height="12">{shape}</svg></span>{meaning}</li>'
        for meaning, shape in keys.items()
    )
    more = len(account.workers) - MOST_ROWS
    hidden = f'<p class="soft">{counted(more, "further worker")} not drawn.</p>' if more > 0 else ""
    return f'<ul class="legend">{"".join(items)}</ul>{hidden}'


def _table(table: Table) -> str:
    left = [' class="left"' if column.left else "" for column in table.columns]
    head = "".join(
        f"<th{mark}>{escape(column.title)}</th>" for column, mark in zip(table.columns, left, strict=True)
    )
    rows = []
    for row in table.rows:
        cells = (
            f'<td{mark} data-key="{column.key}" data-title="{escape(column.title)}">{escape(text)}</td>'
            for column, mark, text in zip(table.columns, left, row, strict=True)
        )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<h2>{escape(table.title)}</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _items(account: Account, events: list[journal.Entry], needed: Collection[str]) -> Iterator[str]:
    for in_common, row in journal.folded(events, needed):
        items, kind = "", ""
        for entry in row:
            kind = "notice-event" if entry.what == "notice" else entry.what
            kind = kind if entry.end is None else _CLASSES[entry.end]
            time = f"<time>{clock(entry.at, account.began)}</time>"
            items += f'<li id="{escape(entry.key)}" class="{kind}">{time}{escape(entry.words)}</li>'
        if in_common:
            summary = f"<summary><time>{clock(row[0].at, account.began)}</time>{escape(in_common)}</summary>"
            items = f'<li class="{kind}"><details>{summary}<ol>{items}</ol></details></li>'
        yield items
