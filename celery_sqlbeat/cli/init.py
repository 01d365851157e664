"""Run `celery sqlbeat init`, which creates or upgrades the tables, and `celery sqlbeat demo`."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from celery_sqlbeat.cli import Command, settings_of
from celery_sqlbeat.cli.output import json_option, print_json, progress_bar, say
from celery_sqlbeat.config.database_url import DatabaseUrl, database_url
from celery_sqlbeat.errors import SqlbeatError

if TYPE_CHECKING:
    from celery_sqlbeat.api.reseal import Resealed
    from celery_sqlbeat.config.payload_key import Keyring
    from celery_sqlbeat.store import Store


WITH_SCRIPT = ("sqlite", "postgresql", "mysql", "mssql")


@click.command(cls=Command)
@click.option("--sql", "only_print", is_flag=True, help="Print the script that creates everything; connect to nothing.")
@click.option(
    "--recovered",
    is_flag=True,
    help="After a restore or a lossy fail-over: raise every fence, so that nothing of what was lost is valid any more.",
)
@click.option(
    "--reencrypt",
    is_flag=True,
    help="Encrypt the arguments of all jobs with the newest key of sqlbeat_payload_key; safe to interrupt and repeat.",
)
@click.option(
    "--guard",
    metavar="URL",
    help="Create only the table that guards the effects of runs, in this database of the shop.",
)
@json_option
@click.pass_context
def init(
    ctx: click.Context, only_print: bool, recovered: bool, reencrypt: bool, guard: str | None, as_json: bool
) -> None:
    """Create or upgrade the tables; safe to repeat.

    Creates them in the database that sqlbeat_database_url names. If the app may not create
    tables, a DBA runs the script that --sql prints. --recovered revokes the lease of every run
    that is executing at that moment; those slots run again. --guard with --sql prints the script
    for the kind of database that its URL names.
    """
    if only_print and (as_json or recovered or reencrypt):
        raise click.UsageError("--sql only prints the script: leave out --json, --recovered and --reencrypt")
    settings = settings_of(ctx)
    if guard is not None:
        if recovered or reencrypt or as_json:
            raise click.UsageError("--guard creates a table of the shop: it goes with --sql alone")
        _guard(database_url(guard), settings.statement_timeout, only_print)
        return
    keys = settings.payload_key
    if reencrypt and keys is None:
        raise click.ClickException("sqlbeat_payload_key is not set: there is no key to encrypt with")
    if reencrypt and keys is not None:
        keys.load()
    url = settings.database_url
    if only_print:
        if url.database not in WITH_SCRIPT:
            raise click.ClickException(f"{url} needs no script: there are no tables; leave out --sql")
        from celery_sqlbeat.store.sql.migrations import creation_script

        click.echo(creation_script(url.database))
        return
    if url.in_memory:
        raise click.ClickException(
            f"{url} is in memory and would be gone at once; name a file: sqlite:///sqlbeat.db, or a server"
        )

    from celery_sqlbeat.store import open_store

    tell: Callable[[str], None] = _nothing if as_json else say
    tell(f"database: {url}")
    store = open_store(replace(settings, payload_key=None))  # which gives rows as they are kept
    try:
        applied = store.migrate(tell)
        tell("the tables are up to date" if applied else "nothing to do: the tables are up to date")
        epoch, raised = _recover(store) if recovered else (None, None)
        resealed = _reencrypt(store, keys) if reencrypt and keys is not None else None
    finally:
        store.close()
    if recovered:
        tell(f"epoch {epoch}: the fences of {raised} jobs and runs are raised")
    if resealed is not None:
        tell(f"the arguments of {resealed.jobs} jobs and one-offs are encrypted with the newest key now")
    if as_json:
        report = {"database": str(url), "applied": applied, "epoch": epoch, "raised": raised}
        print_json(report if resealed is None else {**report, "reencrypted": asdict(resealed)})
    if resealed is not None:
        _tell_left(resealed)


def _guard(url: DatabaseUrl, seconds: float, only_print: bool) -> None:
    """Create the table that guards effects, or print the script that does."""
    if url.database not in WITH_SCRIPT or (url.in_memory and not only_print):
        raise click.ClickException(f"{url} is no SQL database that lasts: name the one that the effects are in")
    from celery_sqlbeat.store import dialect_for
    from celery_sqlbeat.store.sql.engine import Database
    from celery_sqlbeat.store.sql.guard import guard_script

    script = guard_script(url.database)
    if only_print:
        click.echo(script)
        return
    say(f"database: {url}")
    database = Database(dialect_for(url, seconds), patience=seconds)
    try:
        database.write(lambda session: session.script(script))
    finally:
        database.close()
    say("the table SqlbeatGuard is there")


def _recover(store: Store) -> tuple[int, int]:
    """Raise the epoch; return it, and how many fences were raised."""
    raised = 0

    def count(rows: int) -> None:
        nonlocal raised
        raised += rows
        progress(rows)

    with progress_bar("raising fences") as progress:
        epoch = store.recover(count)
    return epoch, raised


def _reencrypt(store: Store, keys: Keyring) -> Resealed:
    from celery_sqlbeat.api.reseal import reseal

    with progress_bar("encrypting", store.counts().total) as progress:
        return reseal(store, keys, progress)


def _tell_left(resealed: Resealed) -> None:
    """Say which jobs are not under the newest key, and exit with 1 where there are any."""
    from celery_sqlbeat.checks.facts import listed

    if resealed.locked:
        say(f"Error: no key of sqlbeat_payload_key opens the arguments of {listed(resealed.locked)}", err=True)
    if resealed.changing:
        say(f"Error: somebody else keeps changing {listed(resealed.changing)}: run this again", err=True)
    if resealed.locked or resealed.changing:
        raise SystemExit(1)


def _nothing(text: str) -> None:
    """Print nothing: JSON stands alone."""


def project_root() -> Path:
    """Find the folder of the example project, in an installed wheel or beside the package."""
    package = Path(__file__).resolve().parents[1]
    for root in (package / "demo", package.parent):
        if (root / "example_project" / "demo.py").is_file():
            return root
    raise SqlbeatError("the example project is missing from this installation: install celery-sqlbeat again")


@click.command(cls=Command)
@click.option("--keep", is_flag=True, help="Keep the database, the messages and the logs, and say where they are.")
@click.option(
    "--database",
    metavar="URL",
    help="Run on this database, in a namespace of its own that is emptied; creates the tables if they are missing.",
)
def demo(keep: bool, database: str | None) -> None:
    """Show on this machine what happens when a beat and a worker are killed.

    Needs no server and takes about a minute: SQLite, a folder of messages, three beats and two
    workers of the example project. The exit code is 0 if no slot was lost and none ran twice.
    """
    if database is not None and database_url(database).in_memory:
        raise click.ClickException("beats and workers are processes, and no other process sees a database in memory")
    script = runpy.run_path(str(project_root() / "example_project" / "demo.py"), run_name="example_project.demo")
    try:
        clean = script["run_demo"](keep, database)
    except KeyboardInterrupt:
        raise click.ClickException("ended before its time; nothing is left behind") from None
    if not clean:
        raise SystemExit(1)
