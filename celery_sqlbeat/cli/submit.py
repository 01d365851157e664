"""Run `celery sqlbeat submit`: a one-off, now or for later."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import click

from celery_sqlbeat.cli import Command, app_of, handle_of, import_tasks
from celery_sqlbeat.cli.jobs import json_value
from celery_sqlbeat.cli.output import json_option, print_json, say, when_twice

_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_PART = re.compile(r"(\d+(?:\.\d+)?)([wdhms])")


def duration_value(ctx: click.Context, param: click.Parameter, value: str | None) -> timedelta | None:
    """Parse a duration such as 3w, 1d12h or 90s; a plain number is seconds."""
    if value is None:
        return None
    text = value if not value[-1:].isdigit() else f"{value}s"
    if not text or _PART.sub("", text):
        raise click.BadParameter(f"{value!r} is no duration: write 3w, 1d12h, 90s or a number of seconds", ctx, param)
    try:
        return sum((timedelta(**{_UNITS[unit]: float(count)}) for count, unit in _PART.findall(text)), timedelta())
    except OverflowError:
        raise click.BadParameter(f"{value!r} is too long", ctx, param) from None


@click.command(cls=Command)
@click.argument("task")
@click.option("--args", callback=json_value, help="A JSON array.")
@click.option("--kwargs", callback=json_value, help="A JSON object.")
@click.option("--in", "countdown", callback=duration_value, metavar="DURATION", help="Such as 90s, 1d12h or 3w.")
@click.option("--eta", metavar="INSTANT", help="Such as 2027-01-31T09:00:00Z; without a zone it is in UTC.")
@click.option("--key", metavar="KEY", help="An idempotency key: the same call again gives the same run.")
@click.option("--ttl", type=float, metavar="SECONDS", help="How long the key stands for the run; a day by default.")
@click.option("--options", callback=json_value, help="A JSON object of message options, such as queue and priority.")
@click.option("--max-retries", type=int)
@click.option("--lock-timeout", type=float)
@click.option("--max-runtime", type=float)
@click.option("--strict", is_flag=True, help="Refuse a task that is not registered in this app.")
@json_option
@click.pass_context
def submit(
    ctx: click.Context,
    task: str,
    args: Any,
    kwargs: Any,
    countdown: timedelta | None,
    eta: str | None,
    key: str | None,
    ttl: float | None,
    options: Any,
    max_retries: int | None,
    lock_timeout: float | None,
    max_runtime: float | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Submit one run of TASK, now or for later; it is kept until its outcome is recorded."""
    import_tasks(app_of(ctx))
    with handle_of(ctx) as beat:
        run = beat.submit(
            task,
            args,
            kwargs,
            eta=eta,
            countdown=countdown,
            idempotency_key=key,
            ttl=ttl,
            options=options,
            strict=strict,
            max_retries=max_retries,
            lock_timeout=lock_timeout,
            max_runtime=max_runtime,
        )
    if as_json:
        print_json(run.as_json())
    elif run.is_new:
        say(f"run {run.id} of {task} is {run.state}, due {when_twice(run.scheduled_for)}")
    else:
        say(f"run {run.id} of {task} was submitted before under this key: {run.state}")
