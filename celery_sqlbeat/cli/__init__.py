"""`celery sqlbeat ...`: the group of our commands, and what they share.

Every celery process loads it, so it imports nothing but click.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from celery_sqlbeat.errors import SqlbeatError, StoreError, TransientError
from celery_sqlbeat.worker import wait_for_worker

if TYPE_CHECKING:
    from celery_sqlbeat.api import Handle
    from celery_sqlbeat.config.settings import Settings


_SILENT = logging.NullHandler()


class Command(click.Command):
    """A command that prints an error as one line, and exits with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        # azure-identity logs what its error says, in a dozen lines. Other handlers still get them.
        logging.getLogger("azure").addHandler(_SILENT)
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader has closed the pipe; click ends silently then
            raise
        except (SqlbeatError, OSError) as error:
            raise click.ClickException(_with_remedy(error, ctx)) from error


class Group(click.Group):
    """A group that imports a command when it is used, or when the help lists it."""

    def __init__(self, *args: Any, late: Mapping[str, str], **kwargs: Any) -> None:
        """Take `late`: the place of each command, `module:attribute` below celery_sqlbeat.cli."""
        super().__init__(*args, **kwargs)
        self._late = late

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names; those imported late come last, in the order given."""
        return [*super().list_commands(ctx), *self._late]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of this name, and return it."""
        where = self._late.get(cmd_name)
        if where is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = where.partition(":")
        command: click.Command = getattr(importlib.import_module(f"celery_sqlbeat.cli.{module}"), attribute)
        return command


def _with_remedy(error: Exception, ctx: click.Context) -> str:
    """Return the text of an error; one of a driver, which names no remedy, gets that of `check`."""
    if not isinstance(error, StoreError) or not (isinstance(error, TransientError) or error.__cause__):
        return one_line(error)
    from celery_sqlbeat.checks.installation import error_finding

    finding = error_finding(error, settings_of(ctx).database_url)
    return one_line(f"{finding.says}: {finding.remedy}")


def one_line(error: BaseException | str) -> str:
    """Return the text of an error on one line, escaped."""
    from celery_sqlbeat.events import shown

    return shown(" ".join(str(error).split()) or type(error).__name__)


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
    from celery_sqlbeat import environment
    from celery_sqlbeat.config.settings import read_settings

    return read_settings(app_of(ctx).conf, environment.variables())


@contextmanager
def handle_of(ctx: click.Context) -> Iterator[Handle]:
    """Open the handle of the app that `celery -A` names; close its connections afterwards."""
    from celery_sqlbeat.api import Handle

    settings = settings_of(ctx)
    if settings.database_url.in_memory:
        raise click.ClickException(
            f"sqlbeat_database_url = {settings.database_url} is in the memory of one process, which no command sees: "
            "ask in that process, by celery_sqlbeat.api, or name a database"
        )
    handle = Handle(app_of(ctx), settings)
    try:
        yield handle
    finally:
        handle.close()


def import_tasks(app: Any) -> None:
    """Let the app import the modules of its tasks, and warn of one that cannot be imported."""
    from celery_sqlbeat.cli.output import say

    try:
        app.loader.import_default_modules()
        app.finalize()
    except Exception as error:  # whatever the user's modules raise
        say(f"Warning: the modules of the app cannot be imported: {one_line(error)}", err=True)


def warn_of_task_id(task_id: object, job_name: str) -> None:
    """Warn that the task id in the options of a job is replaced by the run's."""
    from celery_sqlbeat.beat_schedule.sync import TASK_IDS
    from celery_sqlbeat.cli.output import say

    say(
        f"Warning: Options.task_id {task_id!r} of job {job_name} is replaced: {TASK_IDS}; leave it out",
        err=True,
    )


def warn_of_unregistered_task(task: str, job_name: str) -> None:
    """Warn that this app does not have a task; another app may have it, so this is no error."""
    from celery_sqlbeat.cli.output import say

    say(
        f"Warning: task {task} of job {job_name} is not registered in this app, so its arguments are not checked: "
        "see that the workers of its queue have it (imports, include, autodiscover_tasks), or correct its name",
        err=True,
    )


@click.group(
    cls=Group,
    late={
        "init": "init:init",
        "check": "status:check",
        "status": "status:status",
        "health": "status:health",
        "explain": "runs:explain",
        "jobs": "jobs:jobs",
        "runs": "runs:runs",
        "dead": "runs:dead",
        "submit": "submit:submit",
        "locks": "locks:locks",
        "demo": "init:demo",
    },
)
def sqlbeat(**_preload_options: object) -> None:  # options that the app adds to every command (`user_options`)
    """Manage the schedule in a SQL table."""


wait_for_worker()

__all__ = ["sqlbeat"]
