"""`celery sqlbeat init`: creates or upgrades the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from celery_sqlbeat.cli.command import Command, settings_of
from celery_sqlbeat.cli.output import json_option, print_json, progress_bar

if TYPE_CHECKING:
    from celery_sqlbeat.store import Store


@click.command(cls=Command)
@click.option("--sql", "only_print", is_flag=True, help="Print the script that creates everything; connect to nothing.")
@click.option(
    "--recovered",
    is_flag=True,
    help="After a restore or a lossy fail-over: raise every fence, so that nothing of what was lost is valid any more.",
)
@json_option
@click.pass_context
def init(ctx: click.Context, only_print: bool, recovered: bool, as_json: bool) -> None:
    """Create or upgrade the tables; safe to repeat.

    They are made in the database that sqlbeat_database_url names. The script that --sql prints is for whoever may
    create tables where the app may not. After --recovered, what runs at that moment loses its lease, and runs again.
    """
    if only_print and (as_json or recovered):
        raise click.UsageError("--sql only prints the script: leave out --json and --recovered")
    settings = settings_of(ctx)
    url = settings.database_url
    if only_print:
        from celery_sqlbeat.store.migrations import creation_script

        click.echo(creation_script(url.database))
        return
    if url.in_memory:
        raise click.ClickException(f"{url} is in memory and would be gone at once; name a file: sqlite:///sqlbeat.db")

    from celery_sqlbeat.store import open_store

    say: Callable[[str], None] = _nothing if as_json else click.echo
    say(f"database: {url}")
    store = open_store(settings)
    try:
        applied = store.migrate(say)
        say("the tables are up to date" if applied else "nothing to do: the tables are up to date")
        epoch, raised = _recover(store) if recovered else (None, None)
    finally:
        store.close()
    if recovered:
        say(f"epoch {epoch}: the fences of {raised} jobs and runs are raised")
    if as_json:
        print_json({"database": str(url), "applied": applied, "epoch": epoch, "raised": raised})


def _recover(store: Store) -> tuple[int, int]:
    """The new epoch, and how many fences were raised to it."""
    raised = 0

    def count(rows: int) -> None:
        nonlocal raised
        raised += rows
        progress(rows)

    with progress_bar("raising fences") as progress:
        epoch = store.recover(count)
    return epoch, raised


def _nothing(text: str) -> None:
    """Where JSON is printed, nothing else is."""
