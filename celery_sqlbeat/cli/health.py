"""`celery sqlbeat health`: exit code 0 if all is well, for probes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_sqlbeat.cli.command import Command, handle_of
from celery_sqlbeat.cli.output import json_option, print_json

if TYPE_CHECKING:
    from celery_sqlbeat.handle import Handle


@click.command(cls=Command)
@click.option("--here", is_flag=True, help="Only this machine: is its beat or worker alive?")
@click.option(
    "--liveness",
    is_flag=True,
    help="Only whether a beat or worker of this machine hangs. An absent database is no reason to restart it.",
)
@click.option(
    "--max-lag", type=click.FloatRange(min=0), default=60.0, show_default=True, help="Seconds that a job may be due."
)
@json_option
@click.pass_context
def health(ctx: click.Context, here: bool, liveness: bool, max_lag: float, as_json: bool) -> None:
    """Exit with 0 if the database answers, a beat is alive, and no job waits for too long or cannot be sent; else 1."""
    from celery_sqlbeat.errors import TransientError

    with handle_of(ctx) as beat:
        try:
            problems = _problems(beat, here, liveness, max_lag)
            warnings = [] if here or liveness else _warnings(beat)
        except TransientError as error:
            problems, warnings = ([] if liveness else [str(error)]), []
    if as_json:
        print_json({"healthy": not problems, "problems": problems, "warnings": warnings})
    else:
        for warning in warnings:
            click.echo(f"Warning: {warning}", err=True)
        for problem in problems:
            click.echo(f"Error: {problem}", err=True)
        if not problems:
            click.echo("healthy")
    ctx.exit(1 if problems else 0)


def _problems(beat: Handle, here: bool, liveness: bool, max_lag: float) -> list[str]:
    import socket

    from celery_sqlbeat.handle import health as judged
    from celery_sqlbeat.handle.refused import refused_jobs
    from celery_sqlbeat.handle.status import HOUR, processes, read_lag

    store = beat.ready()
    nodes = store.nodes().seen(HOUR)
    seen = processes(nodes, beat.settings)
    if liveness:
        return judged.hanging(seen, socket.gethostname(), _runs)
    if here:
        return judged.of_this_machine(seen, socket.gethostname())
    return judged.of_the_namespace(seen, read_lag(store), max_lag, list(refused_jobs(store, nodes).values()))


def _warnings(beat: Handle) -> list[str]:
    """What may be meant so: a probe that restarted something for it would do harm."""
    from celery_sqlbeat.long_runs import LEAST_SECONDS, MOST_RUNS, long_runs

    running = beat.ready().for_admin().running(LEAST_SECONDS, MOST_RUNS)
    return [str(run) for run in long_runs(running, beat.rules)]


def _runs(pid: int) -> bool:
    """Whether a process of this id runs on this machine."""
    import os

    if os.name == "nt":  # where this signal would be Ctrl-C
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it runs, under another user
        return True
    return True
