"""What all our commands share: the app's settings, and errors as one line instead of a traceback."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from celery_sqlbeat.errors import SqlbeatError, StoreError, TransientError

if TYPE_CHECKING:
    from celery_sqlbeat.config import Settings
    from celery_sqlbeat.handle import Handle


_UNSHOWN = logging.NullHandler()


class Command(click.Command):
    """A command that says in one line what is wrong, and then exits with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        # azure-identity logs a dozen lines beside its error, which has them, too. A user's own handlers get them.
        logging.getLogger("azure").addHandler(_UNSHOWN)
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # whoever reads has seen enough; click ends without a word then
            raise
        except (SqlbeatError, OSError) as error:
            raise click.ClickException(_with_remedy(error, ctx)) from error


class Group(click.Group):
    """A group whose commands are imported when they are used, or when its help lists them."""

    def __init__(self, *args: Any, late: Mapping[str, str], **kwargs: Any) -> None:
        """`late` says where each command is, as `module:attribute` below celery_sqlbeat.cli."""
        super().__init__(*args, **kwargs)
        self._late = late

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names; those that are imported late after the others, in the order in which they were given."""
        return [*super().list_commands(ctx), *self._late]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, imported now."""
        where = self._late.get(cmd_name)
        if where is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = where.partition(":")
        found: click.Command = getattr(importlib.import_module(f"celery_sqlbeat.cli.{module}"), attribute)
        return found


def _with_remedy(error: Exception, ctx: click.Context) -> str:
    """What an error says; where it is the driver's, which knows no remedy, that of `check` comes after it."""
    if not isinstance(error, StoreError) or not (isinstance(error, TransientError) or error.__cause__):
        return one_line(error)
    from celery_sqlbeat.diagnosis.database import of_error

    found = of_error(error, settings_of(ctx).database_url)
    return f"{' '.join(found.says.split())}: {found.remedy}"


def one_line(error: BaseException) -> str:
    """Return what an error says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def app_of(ctx: click.Context) -> Any:
    """Return the app that `celery -A` names, once its configuration is known to load."""
    app = ctx.obj.app
    try:
        len(app.conf)  # Celery reads the configuration when it is first asked for something
    except Exception as error:  # whatever the user's module raises
        raise click.ClickException(f"the app's configuration cannot be loaded: {one_line(error)}") from error
    return app


def settings_of(ctx: click.Context) -> Settings:
    """Return the settings of the app that `celery -A` names."""
    import os

    from celery_sqlbeat.config import read_settings

    return read_settings(app_of(ctx).conf, os.environ)


@contextmanager
def handle_of(ctx: click.Context) -> Iterator[Handle]:
    """The handle of the app that `celery -A` names; its connections are closed afterwards."""
    from celery_sqlbeat.handle import Handle

    handle = Handle(app_of(ctx), settings_of(ctx))
    try:
        yield handle
    finally:
        handle.close()


def import_tasks(app: Any) -> None:
    """Let the app import the modules of its tasks. One that cannot be imported leaves its tasks unknown here."""
    try:
        app.loader.import_default_modules()
        app.finalize()
    except Exception as error:  # whatever the user's modules raise
        click.echo(f"Warning: the modules of the app cannot be imported: {one_line(error)}", err=True)


def warn_of_stranger(task: str, job_name: str) -> None:
    """Say that this app does not have a task; another one may, so that this is no error."""
    click.echo(
        f"Warning: task {task} of job {job_name} is not registered in this app, so its arguments are not checked: "
        "see that the workers of its queue have it (imports, include, autodiscover_tasks), or correct its name",
        err=True,
    )
