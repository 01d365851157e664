"""`celery sqlbeat jobs ...`: the jobs of the namespace."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from celery_sqlbeat.cli.command import Command, Group, handle_of, import_tasks, warn_of_stranger
from celery_sqlbeat.cli.output import (
    confirm,
    json_option,
    print_facts,
    print_json,
    print_table,
    utc_option,
    when,
    when_twice,
    yes_option,
    zone_label,
)

if TYPE_CHECKING:
    from celery_sqlbeat.handle import Job

F = TypeVar("F", bound=Callable[..., Any])


@click.group(
    cls=Group,
    late={
        "import": "importing:import_jobs",
        "export": "exporting:export_jobs",
        "adopt": "adopting:adopt_jobs",
    },
)
def jobs() -> None:
    """The jobs: list, show, define, pause, resume, run now, delete, import, export and adopt."""


def json_value(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    """The value that an option's JSON stands for."""
    try:
        return None if value is None else json.loads(value)
    except (ValueError, RecursionError):
        raise click.BadParameter(f"{value!r} is not JSON", ctx, param) from None


def schedule_value(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    """A number of seconds, or the text for the reader of schedules."""
    try:
        return None if value is None else float(value)
    except ValueError:
        return value


def policy_options(command: F) -> F:
    """The policies as options, in the order of the contract."""
    for name, kind in (
        ("jitter", float),
        ("timezone", str),
        ("max_runtime", float),
        ("lock_timeout", float),
        ("max_retries", int),
        ("catch_up_limit", int),
        ("misfire_grace", float),
        ("misfire", click.Choice(["coalesce", "skip", "catch_up"])),
        ("max_parallel", int),
        ("overlap", click.Choice(["queue", "skip", "allow", "replace"])),
        ("cadence", click.Choice(["from_start", "fixed_rate", "fixed_delay"])),
    ):
        command = click.option(f"--{name.replace('_', '-')}", name, type=kind)(command)
    return command


@jobs.command("list", cls=Command)
@json_option
@utc_option
@click.pass_context
def list_jobs(ctx: click.Context, as_json: bool, utc: bool) -> None:
    """List the jobs."""
    with handle_of(ctx) as beat:
        found = beat.jobs.list()
    if as_json:
        print_json([job.as_json() for job in found])
        return
    headers = ["job", "schedule", "state", f"next run ({zone_label(utc)})"]
    rows = [[job.name, job.schedule, job.state, when(job.retry_at or job.next_run_time, utc)] for job in found]
    print_table(headers, rows, "no jobs")


@jobs.command("show", cls=Command)
@click.argument("name")
@json_option
@click.pass_context
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show everything about one job."""
    with handle_of(ctx) as beat:
        found = beat.jobs.get(name)
        if found is None:
            from celery_sqlbeat.errors import NoSuchJob

            raise NoSuchJob(name, beat.settings.namespace)
    _print(found, as_json)


@jobs.command("put", cls=Command)
@click.argument("name")
@click.option("--task", help="The name of the Celery task.")
@click.option("--schedule", callback=schedule_value, help="Such as 'every 5s' or 'cron 0 3 * * *', or seconds.")
@click.option("--args", callback=json_value, help="A JSON array.")
@click.option("--kwargs", callback=json_value, help="A JSON object.")
@click.option("--options", callback=json_value, help="""A JSON object for apply_async, such as {"queue": "x"}.""")
@click.option("--enabled/--disabled", default=None, help="Left as it is where neither is given.")
@click.option("--start", help="Not before this instant, such as 2027-01-31T09:00:00Z.")
@click.option("--version", type=int, help="Only if the job is still at this version.")
@policy_options
@json_option
@click.pass_context
def put(ctx: click.Context, /, name: str, as_json: bool, **definition: Any) -> None:
    """Define a job: a new one, or the one of this name becomes this.

    What is not given has its default; only whether it is enabled stays as it is. A job that the beat_schedule defines
    takes policies and --enabled or --disabled only.
    """
    from celery_sqlbeat.beat.foreseeing import registered

    with handle_of(ctx) as beat:
        import_tasks(beat.app)
        found = beat.jobs.put(name, **definition)
        if found.task is not None and registered(beat.app, found.task) is None:
            warn_of_stranger(found.task, name)
    _print(found, as_json)


@jobs.command("pause", cls=Command)
@click.argument("name")
@click.option("--reason", default="paused", show_default=True, help="Why; it is shown wherever the job is.")
@click.option("--version", type=int, help="Only if the job is still at this version.")
@json_option
@click.pass_context
def pause(ctx: click.Context, name: str, reason: str, version: int | None, as_json: bool) -> None:
    """Fire nothing more of a job; a run that goes on is not touched."""
    with handle_of(ctx) as beat:
        found = beat.jobs.pause(name, reason, version=version)
    _say(f"{name} is paused: {found.disabled_reason or reason}", found, as_json)


@jobs.command("resume", cls=Command)
@click.argument("name")
@click.option("--version", type=int, help="Only if the job is still at this version.")
@json_option
@click.pass_context
def resume(ctx: click.Context, name: str, version: int | None, as_json: bool) -> None:
    """Go on with a paused job at its next slot; what it missed is recorded as skipped."""
    with handle_of(ctx) as beat:
        found = beat.jobs.resume(name, version=version)
    if found.enabled:
        _say(f"{name} goes on; next run {when_twice(found.next_run_time)}", found, as_json)
    else:
        _say(f"{name} stays disabled ({found.disabled_reason}): its schedule has no slot left", found, as_json)


@jobs.command("run-now", cls=Command)
@click.argument("name")
@json_option
@click.pass_context
def run_now(ctx: click.Context, name: str, as_json: bool) -> None:
    """Run a job once more, now or as soon as its present run ends; its schedule stays as it is."""
    with handle_of(ctx) as beat:
        run = beat.jobs.run_now(name)
        job = beat.jobs.get(name)
    if as_json:
        print_json(run.as_json())
        return
    click.echo(f"{name} runs once more: run {run.id}")
    if job is not None and not job.enabled and job.disabled_reason != "finished":
        click.echo(f"but not before it is resumed; it is paused: {job.disabled_reason}")


@jobs.command("delete", cls=Command)
@click.argument("name")
@click.option("--force", is_flag=True, help="Cancel what runs of it, too.")
@click.option("--version", type=int, help="Only if the job is still at this version.")
@yes_option
@json_option
@click.pass_context
def delete(ctx: click.Context, name: str, force: bool, version: int | None, yes: bool, as_json: bool) -> None:
    """Delete a job as soon as its runs have ended; its history stays."""
    with handle_of(ctx) as beat:
        job = beat.jobs.get(name)
        if job is not None:
            confirm(f"Delete job {name!r}{' and cancel what runs of it' if force else ''}?", yes)
        if not beat.jobs.delete(name, force=force, version=version):
            from celery_sqlbeat.errors import NoSuchJob

            raise NoSuchJob(name, beat.settings.namespace)
        left = beat.jobs.get(name)
    if as_json:
        print_json({"name": name, "deleted": left is None, "waits_for": left.run_id if left else None})
        return
    if left is None:
        click.echo(f"{name} is deleted")
    else:
        click.echo(f"{name} is deleted when its runs have ended: celery -A app sqlbeat runs list {name}")
    if job is not None and job.code_owner is not None:
        click.echo(
            f"the beat_schedule of {job.code_owner} defines it: its beats bring it back at their next look, as new; "
            f"to stop it, take the entry out of the code, or: celery -A app sqlbeat jobs pause {name}"
        )


def _say(text: str, job: Job, as_json: bool) -> None:
    print_json(job.as_json()) if as_json else click.echo(text)


def _print(job: Job, as_json: bool) -> None:
    if as_json:
        print_json(job.as_json())
        return
    facts = [
        ("job", job.name),
        ("state", job.state if job.enabled else f"{job.state} ({job.disabled_reason or 'paused'})"),
        ("task", str(job.task)),
        ("schedule", job.schedule + (f" in {job.timezone}" if job.timezone else "")),
        ("args", _json(job.args)),
        ("kwargs", _json(job.kwargs)),
        ("options", _json(job.options)),
        ("policies", _json(job.policies)),
        ("next run", when_twice(job.next_run_time)),
        ("last run", when_twice(job.last_run_time)),
        ("defined by", f"the beat_schedule of {job.code_owner}" if job.code_owner else "the database"),
        ("version", str(job.version)),
    ]
    if job.start is not None:
        facts.append(("starts", when_twice(job.start)))
    if job.retry_at is not None:
        facts.append(("retry", when_twice(job.retry_at)))
    if job.locked_by is not None:
        facts += [("held by", job.locked_by), ("run", str(job.run_id)), ("lease ends", when_twice(job.lease_ends_at))]
    if job.quarantine is not None:
        facts.append(("set aside", job.quarantine))
    print_facts(facts)


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
