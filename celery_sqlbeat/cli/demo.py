"""`celery sqlbeat demo`: beats and workers on this machine, two of them killed, and an audit."""

import click

from celery_sqlbeat.cli.command import Command


@click.command(cls=Command)
@click.option("--keep", is_flag=True, help="Keep the database, the messages and the logs, and say where they are.")
def demo(keep: bool) -> None:
    """Show on this machine what happens when a beat and a worker are killed.

    Needs no server and takes about a minute: SQLite, a folder of messages, three beats and two workers of the example
    project. The exit code is 0 if no slot was lost and none ran twice.
    """
    from rich.console import Console

    from celery_sqlbeat.demo.screen import Lines, Screen, Tables
    from celery_sqlbeat.demo.show import run_demo

    console = Console(highlight=False)

    def screen() -> Screen:
        return Tables(console) if console.is_terminal else Lines(click.echo)

    try:
        clean = run_demo(screen, click.echo, keep)
    except KeyboardInterrupt:
        raise click.ClickException("ended before its time; nothing is left behind") from None
    if not clean:
        raise SystemExit(1)
