"""A report as one page of HTML with a timeline in SVG, which needs no script, no server and no network.

Everything that comes from events is escaped: a directory is data, which anybody may have written. Its links lead to
other places of the page only.
"""

from __future__ import annotations

from collections.abc import Collection
from html import escape

from keras_preempt import __version__
from keras_preempt.process.words import counted
from keras_preempt.report import journal
from keras_preempt.report.account import Account, Incarnation
from keras_preempt.report.life import End
from keras_preempt.report.style import STYLE
from keras_preempt.report.tables import (
    Table,
    clock,
    headline,
    length,
    lost,
    lost_steps,
    moment,
    percent,
    places,
    speed,
    starts,
    times,
    used,
)
from keras_preempt.report.timeline import MOST_ROWS, NARROW, WIDE, timeline

_FIRST_ON_A_PHONE = "how it ended"


def page(account: Account, directory: str) -> str:
    """Returns the page.

    Args:
        account: The account that it shows.
        directory: The run's directory as the user names it.
    """
    title = escape(directory)
    everything = journal.entries(account)
    needed = _referred_to(account)
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
        *(_loss(account, start, anchors) for start in account.incarnations if start.lost_why),
        "<h2>Timeline</h2>",
        timeline(account, WIDE, anchors),
        timeline(account, NARROW, anchors),
        _legend(account),
        _table(starts(account)),
        _table(times(account)),
        _events(account, events, needed, len(everything) - len(events)),
        _table(places(account)),
        _gaps(account),
        f'<p class="soft">Made by keras-preempt {__version__}. Times are UTC; goodput is the part of the wall time '
        "in which steps were trained that did not have to be run again. The speed is known where an epoch, a "
        "validation or a save began, and is the mean in between.</p>",
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _class_of(end: End) -> str:
    return "silent" if end is End.SILENT else end.value


def _ended(account: Account) -> str:
    """How the run ended, before anything else."""
    last = account.incarnations[-1]
    why = f"<span>{escape(last.why)}</span><br>" if last.why else ""
    return (
        f'<p class="ended {_class_of(last.end)}"><b>{escape(_capital(headline(account)))}</b>{why}<span class="soft">'
        f"{moment(account.began)} to {clock(account.ended, account.began)} UTC</span></p>"
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _figures(account: Account) -> str:
    figures = {
        "goodput": percent(account.goodput),
        "steps lost": lost(account),
        "steps done": f"{account.step:,}",
        "steps a second": "-" if account.speed is None else speed(account.speed),
        "wall time": length(account.ended - account.began),
    }
    boxes = "".join(
        f"<div><b>{escape(value)}</b><span>{name}</span></div>" for name, value in figures.items()
    )
    return f'<div class="figures">{boxes}</div>'


def _referred_to(account: Account) -> set[str]:
    """The events to which lost steps lead."""
    found = set()
    for start in account.incarnations:
        if start.lost_why:
            found.add(journal.end_key(start))
            if (save := journal.saved_before(account, start)) is not None:
                found.add(journal.save_key(save.incarnation, save.step))
    return found


def _loss(account: Account, start: Incarnation, anchors: Collection[str]) -> str:
    """What a start has lost, with links to how that came and to what was left."""
    links = [(journal.end_key(start), f"how start {start.number} ended")]
    if (save := journal.saved_before(account, start)) is not None:
        links.append((journal.save_key(save.incarnation, save.step), f"the checkpoint of step {save.step:,}"))
    shown = " · ".join(
        f'<a href="#{escape(key)}">{escape(words)}</a>' for key, words in links if key in anchors
    )
    return f'<p class="warn">{escape(lost_steps(start))}<br>{shown}</p>'


def _legend(account: Account) -> str:
    keys = [
        f'<li><span class="key"><svg width="14" height="12"><rect class="{what}" width="14" height="12" rx="2"/></svg>'
        f"</span>{what}</li>"
        for what in used(account)
        if what != "idle"
    ]
    if account.notices:
        keys.append(_mark('<path class="notice" d="M7 11l-4.5 -8h9z"/>', "a notice"))
    if account.saves:
        keys.append(_mark('<circle class="saved" cx="7" cy="6" r="3"/>', "a checkpoint is committed"))
    if account.lost and account.speed is not None:
        keys.append(_mark('<rect class="area lost" width="14" height="12"/>', "steps that were lost"))
    more = len(account.workers) - MOST_ROWS
    hidden = f'<p class="soft">{counted(more, "further worker")} not drawn.</p>' if more > 0 else ""
    return f'<ul class="legend">{"".join(keys)}</ul>{hidden}'


def _mark(shape: str, meaning: str) -> str:
    return f'<li><span class="key"><svg width="14" height="12">{shape}</svg></span>{meaning}</li>'


def _table(table: Table) -> str:
    def classes(column: str) -> str:
        found = ["left"] * (column in table.left) + ["first"] * (column == _FIRST_ON_A_PHONE)
        return f' class="{" ".join(found)}"' if found else ""

    head = "".join(f"<th{classes(column)}>{escape(column)}</th>" for column in table.columns)

    def line(row: list[str]) -> str:
        named = zip(table.columns, row, strict=True)
        return f"<tr>{''.join(_cell(column, text, classes(column)) for column, text in named)}</tr>"

    rows = "".join(map(line, table.rows))
    return (
        f'<h2>{escape(table.title)}</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(column: str, text: str, classes: str) -> str:
    return f'<td{classes} data-column="{escape(column)}">{escape(text)}</td>'


def _events(account: Account, events: list[journal.Entry], needed: Collection[str], left_out: int) -> str:
    more = f'<p class="soft">{counted(left_out, "older event")} not shown.</p>' if left_out else ""

    def item(entry: journal.Entry) -> str:
        return (
            f'<li id="{escape(entry.key)}" class="{_kind(entry)}"><time>{clock(entry.at, account.began)}</time>'
            f"{escape(entry.words)}</li>"
        )

    items = ""
    for in_common, row in journal.folded(events, needed):
        shown = "".join(map(item, row))
        if in_common:
            summary = f"<summary><time>{clock(row[0].at, account.began)}</time>{escape(in_common)}</summary>"
            shown = f'<li class="{_kind(row[0])}"><details>{summary}<ol>{shown}</ol></details></li>'
        items += shown
    return f'<h2>What happened</h2>{more}<ol class="events">{items}</ol>'


def _kind(entry: journal.Entry) -> str:
    if entry.end is not None:
        return _class_of(entry.end)
    return "notice-event" if entry.what == "notice" else entry.what


def _gaps(account: Account) -> str:
    if not account.gaps:
        return ""
    items = "".join(f"<li>{escape(gap)}</li>" for gap in account.gaps)
    return f'<h2>What is missing</h2><ul class="warn">{items}</ul>'
