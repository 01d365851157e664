"""What all our commands share: the app's settings, and errors as one line instead of a traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_sqlbeat.errors import SqlbeatError

if TYPE_CHECKING:
    from celery_sqlbeat.config import Settings


class Command(click.Command):
    """A command that says in one line what is wrong, and then exits with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (SqlbeatError, OSError) as error:
            raise click.ClickException(one_line(error)) from error


def one_line(error: BaseException) -> str:
    """Return what an error says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def settings_of(ctx: click.Context) -> Settings:
    """Return the settings of the app that `celery -A` names."""
    import os

    from celery_sqlbeat.config import read_settings

    conf = ctx.obj.app.conf
    try:
        len(conf)  # Celery reads the configuration when it is first asked for something
    except Exception as error:  # whatever the user's module raises
        raise click.ClickException(f"the app's configuration cannot be loaded: {one_line(error)}") from error
    return read_settings(conf, os.environ)
