"""How the commands print: tables for people, plain text where nobody looks, JSON for programs; and what they ask first.

Nothing but click at import; rich is loaded when a table meets a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
utc_option = click.option("--utc", is_flag=True, help="Show times in UTC instead of this machine's time zone.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def print_json(value: Any) -> None:
    """Print a value as programs read it."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], empty: str, ids_first: bool = False) -> None:
    """Print rows as a table that fits the terminal, or as aligned plain text; `empty` where there is none.

    `ids_first`: the first column is for copying, so it is not broken as long as the others can give way.
    """
    if not rows:
        click.echo(empty)
    elif sys.stdout.isatty():
        _print_rich(headers, rows, ids_first)
    else:
        lines = [[_plain(cell) for cell in row] for row in rows]
        widths = [max(len(line[at]) for line in (headers, *lines)) for at in range(len(headers))]
        for line in ([header.upper() for header in headers], *lines):
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one a line; a value of several lines is indented."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        first, *more = value.splitlines() or [""]
        click.echo(f"{name.ljust(width)}  {first}".rstrip())
        for line in more:
            click.echo(f"{' ' * width}  {line}")


def when(value: Any, utc: bool = False) -> str:
    """An instant to the second as a table shows it; what cannot be read is shown as it stands."""
    if value is None:
        return "-"
    if not isinstance(value, datetime):
        return str(value)
    return f"{value if utc else value.astimezone():%Y-%m-%d %H:%M:%S}"


def when_briefly(value: datetime, utc: bool = False) -> str:
    """An instant of the last days as a narrow table shows it."""
    return f"{value if utc else value.astimezone():%m-%d %H:%M:%S}"


def when_twice(value: Any) -> str:
    """An instant in the user's time zone and in UTC."""
    if not isinstance(value, datetime):
        return when(value)
    local = value.astimezone()
    there = f"{value.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    return there if local.utcoffset() == timezone.utc.utcoffset(None) else f"{local:%Y-%m-%d %H:%M:%S %Z} ({there})"


def zone_label(utc: bool = False) -> str:
    """The name of the time zone in which `when` shows instants."""
    return "UTC" if utc else datetime.now().astimezone().tzname() or "local"


def confirm(question: str, yes: bool) -> None:
    """Ask before something is destroyed; without a terminal there is nobody to ask, so only --yes will do."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.ClickException(f"{question} There is no terminal to answer at: add --yes")
    click.confirm(question, abort=True)


@contextmanager
def progress_bar(label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar that says how far long work has come, by steps; nothing where nobody looks."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps: bar.advance(task, steps)


def _print_rich(headers: Sequence[str], rows: Sequence[Sequence[str]], ids_first: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for at, header in enumerate(headers):
        table.add_column(header, overflow="fold", no_wrap=ids_first and at == 0)
    for row in rows:
        table.add_row(*(Text(_plain(cell)) for cell in row))  # as text: a name may look like markup
    console.print(table)


def _plain(text: str) -> str:
    """On one line, and without what a terminal would obey."""
    return "".join(character if character.isprintable() else "\ufffd" for character in " ".join(text.split()))
