"""A report as one page of HTML, which needs no script, no server and no network.

Everything that comes from events is escaped: a directory is data, and may be anybody's.
"""

from __future__ import annotations

from html import escape

from keras_preempt import __version__
from keras_preempt.report.account import Account
from keras_preempt.report.page_style import STYLE
from keras_preempt.report.tables import Table, notices, saves, starts, times
from keras_preempt.report.timeline import MOST_ROWS, timeline
from keras_preempt.report.wording import (
    clock,
    counted,
    headline,
    length,
    losses,
    lost,
    moment,
    percent,
    used,
)


def page(account: Account, directory: str) -> str:
    """Returns the page.

    Args:
        account: What it shows.
        directory: How the user calls the run's directory.
    """
    title = escape(directory)
    tables = [starts(account), times(account), notices(account), saves(account)]
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        # Should anything slip through, a browser loads and runs none of it.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{title}: report</title><style>{STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        f'<p>{escape(headline(account))}; <span class="soft">{moment(account.began)} to '
        f"{clock(account.ended, account.began)} UTC</span></p>",
        _figures(account),
        *(f'<p class="warn">{escape(line)}</p>' for line in losses(account)),
        f'<h2>Timeline</h2><div class="wide">{timeline(account)}</div>',
        _legend(account),
        *(_table(table) for table in tables if table is not None),
        _gaps(account),
        f'<p class="soft">Made by keras-preempt {__version__}. Times are UTC; goodput is the part of the wall time '
        "in which steps were trained that did not have to be run again.</p>",
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _figures(account: Account) -> str:
    figures = {
        "goodput": percent(account.goodput),
        "steps lost": lost(account.lost, account.lost_exactly),
        "steps kept": f"{account.steps_run - account.lost:,}",
        "starts": f"{len(account.incarnations):,}",
        "wall time": length(account.ended - account.began),
    }
    shown = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in figures.items())
    return f'<div class="figures">{shown}</div>'


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
    more = len(account.workers) - MOST_ROWS
    hidden = f'<p class="soft">{counted(more, "further worker")} not drawn.</p>' if more > 0 else ""
    return f'<ul class="legend">{"".join(keys)}</ul>{hidden}'


def _mark(shape: str, meaning: str) -> str:
    return f'<li><span class="key"><svg width="14" height="12">{shape}</svg></span>{meaning}</li>'


def _table(table: Table) -> str:
    def cell(tag: str, column: str, text: str) -> str:
        left = ' class="left"' if column in table.left else ""
        return f"<{tag}{left}>{escape(text)}</{tag}>"

    head = "".join(cell("th", column, column) for column in table.columns)
    rows = "".join(
        f"<tr>{''.join(cell('td', column, text) for column, text in zip(table.columns, row, strict=True))}</tr>"
        for row in table.rows
    )
    return (
        f'<h2>{escape(table.title)}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _gaps(account: Account) -> str:
    if not account.gaps:
        return ""
    items = "".join(f"<li>{escape(gap)}</li>" for gap in account.gaps)
    return f'<h2>What is missing</h2><ul class="warn">{items}</ul>'
