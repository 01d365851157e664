"""Print tables and lines for people, JSON for programs, and ask before something is destroyed.

Text from rows is escaped, so that no name ends a line. rich is loaded for a terminal only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from celery_sqlbeat import environment
from celery_sqlbeat.events import shown

if TYPE_CHECKING:
    from celery_sqlbeat.api import Run

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
utc_option = click.option("--utc", is_flag=True, help="Show times in UTC instead of this machine's time zone.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def print_json(value: Any) -> None:
    """Print a value as JSON; control characters that JSON allows in a text are escaped, too."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    click.echo("\n".join(map(_printable, text.split("\n"))))


def _printable(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)


def say(text: str, err: bool = False) -> None:
    """Print one line, and no more than one: names and reasons in it come from rows."""
    click.echo(shown(text), err=err)


def print_block(text: str) -> None:
    """Print a text of several lines, such as a traceback; indented, none forges a line."""
    click.echo("".join(f"\n  {shown(line)}" for line in text.splitlines()))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], empty: str, ids_first: bool = False) -> None:
    """Print rows as a table for a terminal, or as aligned plain text; `empty` without rows.

    `ids_first`: the first column is for copying, so it is wrapped last.
    """
    if not rows:
        click.echo(empty)
    elif sys.stdout.isatty():
        _print_rich(headers, rows, ids_first)
    else:
        lines = [[shown(cell) for cell in row] for row in rows]
        widths = [max(len(line[at]) for line in (headers, *lines)) for at in range(len(headers))]
        for line in ([header.upper() for header in headers], *lines):
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one a line."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        say(f"{name.ljust(width)}  {value}".rstrip())


def when(value: Any, utc: bool = False) -> str:
    """Format an instant to the second for a table; what cannot be read stays as it is."""
    if value is None:
        return "-"
    if not isinstance(value, datetime):
        return str(value)
    return f"{value if utc else value.astimezone():%Y-%m-%d %H:%M:%S}"


def when_briefly(value: datetime, utc: bool = False) -> str:
    """Format an instant of the last days for a narrow table."""
    return f"{value if utc else value.astimezone():%m-%d %H:%M:%S}"


def when_twice(value: Any) -> str:
    """Format an instant in the user's time zone and in UTC."""
    if not isinstance(value, datetime):
        return when(value)
    local = value.astimezone()
    there = f"{value.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    return there if local.utcoffset() == timezone.utc.utcoffset(None) else f"{local:%Y-%m-%d %H:%M:%S %Z} ({there})"


def zone_label(utc: bool = False) -> str:
    """Return the name of the time zone in which `when` shows instants."""
    return "UTC" if utc else environment.now().astimezone().tzname() or "local"


def confirm(question: str, yes: bool) -> None:
    """Ask before something is destroyed; without a terminal only --yes will do."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.ClickException(f"{question} There is no terminal to answer at: add --yes")
    click.confirm(question, abort=True)


@contextmanager
def progress_bar(label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show the progress of long work on a terminal; yield what counts its steps."""
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
        table.add_row(*(Text(shown(cell)) for cell in row))  # as text: a name may look like markup
    console.print(table)


def cancelled_line(run: Run) -> str:
    """Return what became of a run that was cancelled."""
    of = f" of {run.job_name}" if run.job_name else ""
    if run.state == "running":
        return f"run {run.id}{of} is being stopped by its worker, {run.started_by}, and ends as cancelled"
    return f"run {run.id}{of} is cancelled"
