"""`celery sqlbeat runs ...`: the history of the namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_sqlbeat.cli.command import Command, handle_of
from celery_sqlbeat.cli.output import (
    json_option,
    print_facts,
    print_json,
    print_table,
    utc_option,
    when_briefly,
    when_twice,
    zone_label,
)
from celery_sqlbeat.durations import span

if TYPE_CHECKING:
    from celery_sqlbeat.handle import Run

STATES = ("scheduled", "claimed", "running", "retry", "success", "dlq", "dispatched", "skipped", "cancelled")


@click.group()
def runs() -> None:
    """The history: every attempt, and every gap of skipped slots."""


@runs.command("list", cls=Command)
@click.argument("job", required=False)
@click.option("--state", type=click.Choice(STATES), help="Only attempts in this state.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many, the newest.")
@json_option
@utc_option
@click.pass_context
def list_runs(ctx: click.Context, job: str | None, state: str | None, limit: int, as_json: bool, utc: bool) -> None:
    """List the newest attempts, of one JOB or of all."""
    with handle_of(ctx) as beat:
        found = beat.runs.list(job, state=state, limit=limit)
    if as_json:
        print_json([run.as_json() for run in found])
        return
    headers = ["run", "job", f"slot ({zone_label(utc)})", "no.", "state"]
    rows = [
        [run.id, run.job_name, when_briefly(run.scheduled_for, utc), str(run.attempt), state_of(run)] for run in found
    ]
    print_table(headers, rows, "no runs", ids_first=True)


@runs.command("show", cls=Command)
@click.argument("run_id")
@json_option
@click.pass_context
def show(ctx: click.Context, run_id: str, as_json: bool) -> None:
    """Show everything about one attempt, its error among it."""
    with handle_of(ctx) as beat:
        run = beat.runs.get(run_id)
    if run is None:
        from celery_sqlbeat.errors import NoSuchRun

        raise NoSuchRun(run_id)
    if as_json:
        print_json(run.as_json())
        return
    facts = [
        ("run", run.id),
        ("job", run.job_name),
        ("state", state_of(run)),
        ("slot", f"{when_twice(run.scheduled_for)}, {run.kind}"),
        ("attempt", f"{run.attempt}, after {run.failures} failures and {run.lost_leases} lost leases"),
        ("claimed", f"{when_twice(run.claimed_at)} by {run.claimed_by}" if run.claimed_by else "-"),
        ("published", when_twice(run.published_at)),
        ("started", f"{when_twice(run.started_at)} by {run.started_by}" if run.started_by else "-"),
        ("finished", when_twice(run.finished_at) + (f" after {span(run.seconds)}" if run.seconds is not None else "")),
    ]
    if run.last_slot is not None:
        facts.insert(4, ("gap", f"{run.slots} slots, the last {when_twice(run.last_slot)}"))
    if run.due_at is not None:
        facts.append(("due", when_twice(run.due_at)))
    if run.error is not None:
        facts.append(("error", run.error))
    print_facts(facts)
    if run.traceback is not None:
        click.echo(f"\n{run.traceback}")


def state_of(run: Run) -> str:
    """The state and its reason."""
    several = f"{run.slots} " if run.slots > 1 else ""
    return several + run.state + (f" ({run.reason})" if run.reason else "")
