"""`celery sqlbeat init`: creates or upgrades the tables."""

import click

from celery_sqlbeat.cli.command import Command, settings_of


@click.command(cls=Command)
@click.option("--sql", "only_print", is_flag=True, help="Print the script that creates everything; connect to nothing.")
@click.pass_context
def init(ctx: click.Context, only_print: bool) -> None:
    """Create or upgrade the tables; safe to repeat.

    They are made in the database that sqlbeat_database_url names. The script that --sql prints is for whoever may
    create tables where the app may not.
    """
    settings = settings_of(ctx)
    url = settings.database_url
    if only_print:
        from celery_sqlbeat.store.migrations import creation_script

        click.echo(creation_script(url.database))
        return
    if url.in_memory:
        raise click.ClickException(f"{url} is in memory and would be gone at once; name a file: sqlite:///sqlbeat.db")

    from celery_sqlbeat.store import open_store

    click.echo(f"database: {url}")
    store = open_store(settings)
    try:
        applied = store.migrate(click.echo)
    finally:
        store.close()
    click.echo("the tables are up to date" if applied else "nothing to do: the tables are up to date")
