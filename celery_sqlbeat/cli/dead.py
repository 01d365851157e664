"""`celery sqlbeat dead ...`: the dead letters of the namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_sqlbeat.cli.command import Command, handle_of
from celery_sqlbeat.cli.output import (
    confirm,
    json_option,
    print_json,
    print_table,
    progress_bar,
    utc_option,
    when_briefly,
    yes_option,
    zone_label,
)

if TYPE_CHECKING:
    from celery_sqlbeat.handle import Handle, Run

_DAY = 86400.0
REPLAYED = "replayed"  # the reason of a dead letter that has got another attempt

job_option = click.option("--job", help="All dead letters of this job.")
all_option = click.option("--all", "everything", is_flag=True, help="All dead letters.")


@click.group()
def dead() -> None:
    """The dead letters: slots whose attempts have all failed."""


@dead.command("list", cls=Command)
@click.argument("job", required=False)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many, the oldest.")
@json_option
@utc_option
@click.pass_context
def list_dead(ctx: click.Context, job: str | None, limit: int, as_json: bool, utc: bool) -> None:
    """List the dead letters, of one JOB or of all."""
    with handle_of(ctx) as beat:
        found = beat.dead.list(job, limit=limit)
        _refuse_unknown(beat, job, found)
    if as_json:
        print_json([run.as_json() for run in found])
        return
    headers = ["run", "job", f"slot ({zone_label(utc)})", "error"]
    rows = [
        [
            run.id,
            run.job_name,
            when_briefly(run.scheduled_for, utc),
            REPLAYED if run.reason == REPLAYED else run.error or "-",
        ]
        for run in found
    ]
    print_table(headers, rows, "no dead letters", ids_first=True)


@dead.command("replay", cls=Command)
@click.argument("run_ids", nargs=-1, metavar="[RUN]...")
@job_option
@all_option
@json_option
@click.pass_context
def replay(ctx: click.Context, run_ids: tuple[str, ...], job: str | None, everything: bool, as_json: bool) -> None:
    """Give dead letters another attempt, under a new run id; each of them once."""
    _refuse_nothing(run_ids, job, everything)
    with handle_of(ctx) as beat, progress_bar("replaying") as progress:
        found = beat.dead.replay(run_ids or None, job=job, progress=progress)
        if not found and not run_ids and job is not None:
            _refuse_unknown(beat, job, beat.dead.list(job, limit=1))
    if as_json:
        print_json([run.as_json() for run in found])
        return
    for run in found:
        click.echo(f"{run.job_name}: attempt {run.attempt} waits as run {run.id}")
    if not found:
        click.echo("nothing to replay: these were replayed before, or their jobs are gone")


@dead.command("purge", cls=Command)
@click.argument("run_ids", nargs=-1, metavar="[RUN]...")
@job_option
@all_option
@click.option("--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Only those that died so long ago.")
@yes_option
@json_option
@click.pass_context
def purge(
    ctx: click.Context,
    run_ids: tuple[str, ...],
    job: str | None,
    everything: bool,
    older_than: float | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete dead letters for good."""
    _refuse_nothing(run_ids, job, everything or older_than is not None)
    what = f"{len(run_ids)} dead letters" if run_ids else f"the dead letters of {job!r}" if job else "the dead letters"
    age = f" that are older than {older_than:g} days" if older_than is not None else ""
    confirm(f"Delete {what}{age} for good?", yes)
    seconds = None if older_than is None else older_than * _DAY
    with handle_of(ctx) as beat, progress_bar("purging", beat.status().dead_letters) as progress:
        purged = beat.dead.purge(run_ids or None, job=job, older_than=seconds, progress=progress)
    print_json({"purged": purged}) if as_json else click.echo(f"{purged} dead letters are gone")


def _refuse_nothing(run_ids: tuple[str, ...], job: str | None, everything: bool) -> None:
    if not (run_ids or job or everything):
        raise click.UsageError("name the runs, or say --job NAME or --all")


def _refuse_unknown(beat: Handle, job: str | None, found: list[Run]) -> None:
    """A job that is gone may have left dead letters; one that has none was never there, or is mistyped."""
    if job is not None and not found and beat.jobs.get(job) is None:
        from celery_sqlbeat.errors import NoSuchJob

        raise NoSuchJob(job, beat.settings.namespace)
