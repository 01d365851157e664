"""`celery sqlbeat jobs export`: the jobs of the table as JSON Lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

import click

from celery_sqlbeat.cli.command import Command, handle_of
from celery_sqlbeat.cli.output import progress_bar

if TYPE_CHECKING:
    from celery_sqlbeat.handle import Handle


@click.command("export", cls=Command)
@click.argument("file", required=False, default="-", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--no-state", is_flag=True, help="Definitions only: neither last nor next runs, nor why one is disabled.")
@click.pass_context
def export_jobs(ctx: click.Context, file: str, no_state: bool) -> None:
    """Write the jobs as JSON Lines to FILE or to the terminal; `jobs import` reads them.

    Jobs that a beat_schedule defines are left out: the code brings them.
    """
    from celery_sqlbeat.transfer.export import exported

    written, of_code, failed = 0, 0, []
    with handle_of(ctx) as beat, _whole(file) as output, progress_bar("exporting", _total(file, beat)) as step:
        for line in exported(beat.ready(), beat.rules, not no_state):
            if isinstance(line, str):
                print(line, file=output)
                written += 1
            elif line is None:
                of_code += 1
            else:
                failed.append(line)
            step(1)
    click.echo(f"{written} jobs written" + (f", {of_code} left to their code" if of_code else ""), err=True)
    for left in failed:
        click.echo(f"Error: job {left.name!r} is left out: {left.reason}", err=True)
    ctx.exit(1 if failed else 0)


def _total(file: str, beat: Handle) -> int | None:
    return None if file == "-" else beat.store.for_admin().counts().total


@contextmanager
def _whole(file: str) -> Iterator[IO[str]]:
    """The file, which takes its place only when all of it is written; `-` is the terminal."""
    if file == "-":
        yield sys.stdout
        return
    part = f"{file}.part"
    try:
        with open(part, "w", encoding="utf-8", newline="\n") as output:
            yield output
        os.replace(part, file)
    finally:
        with suppress(FileNotFoundError):
            os.remove(part)
