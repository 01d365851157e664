"""`celery sqlbeat jobs adopt`: the jobs of an app that was renamed become this app's."""

from __future__ import annotations

import click

from celery_sqlbeat.cli.command import Command, handle_of
from celery_sqlbeat.cli.output import confirm, json_option, print_json, yes_option


@click.command("adopt", cls=Command)
@click.option("--owner", required=True, help="The former name of the app, as in Celery(NAME).")
@yes_option
@json_option
@click.pass_context
def adopt_jobs(ctx: click.Context, owner: str, yes: bool, as_json: bool) -> None:
    """Adopt the jobs that the beat_schedule of a renamed app has defined: this app's beats claim them from then on.

    Those that are not in this app's beat_schedule are disabled at the beats' next look. Jobs of the table, which belong
    to no app, need none of this: every beat of the namespace claims them.
    """
    with handle_of(ctx) as beat:
        confirm(f"Make the jobs of {owner!r} this app's?", yes)
        adopted = beat.jobs.adopt(owner)
    if as_json:
        print_json({"owner": owner, "adopted": adopted})
    else:
        click.echo(f"{len(adopted)} jobs of {owner} are this app's now")
