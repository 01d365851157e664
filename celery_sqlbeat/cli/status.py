"""`celery sqlbeat status`: how things stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_sqlbeat.cli.command import Command, handle_of
from celery_sqlbeat.cli.output import json_option, print_facts, print_json, print_table, when_twice
from celery_sqlbeat.durations import span

if TYPE_CHECKING:
    from celery_sqlbeat.handle.status import Status


@click.command(cls=Command)
@json_option
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Show the jobs, the beats and the workers."""
    with handle_of(ctx) as beat:
        found = beat.status()
    if as_json:
        print_json(found.as_json())
    else:
        _print(found)


def _schema(found: Status) -> str:
    if found.schema_version <= found.schema_known:
        return f"version {found.schema_version}"
    return f"version {found.schema_version}, newer than version {found.schema_known}, which this release knows"


def _print(found: Status) -> None:
    jobs = found.jobs
    print_facts(
        [
            ("database", found.database),
            ("namespace", found.namespace),
            ("store", found.store + (f", epoch {found.epoch}" if found.epoch else "")),
            ("schema", _schema(found)),
            ("clock", f"{when_twice(found.now)}, this machine {found.skew_seconds:+.3f} s"),
            ("jobs", ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in jobs.items())),
            ("waiting", f"{jobs['due']} due" + (f", for up to {span(found.lag_seconds)}" if jobs["due"] else "")),
            (
                "last hour",
                ", ".join(f"{count} {state}" for state, count in found.last_hour.items()) or "nothing was due",
            ),
            ("dead letters", str(found.dead_letters)),
        ]
    )
    click.echo()
    rows = [
        [each.id, each.state, span(each.silent_seconds), each.version, ", ".join(each.queues)]
        for each in found.processes
        if each.state != "stopped"
    ]
    print_table(["beat or worker", "state", "last seen", "version", "queues"], rows, "no beat and no worker is there")
