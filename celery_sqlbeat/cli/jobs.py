"""Run `celery sqlbeat jobs ...`: the jobs of the namespace."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from celery_sqlbeat.cli import (
    Command,
    Group,
    handle_of,
    import_tasks,
    warn_of_task_id,
    warn_of_unregistered_task,
)
from celery_sqlbeat.cli.output import (
    cancelled_line,
    confirm,
    json_option,
    print_facts,
    print_json,
    print_table,
    say,
    utc_option,
    when,
    when_twice,
    yes_option,
    zone_label,
)
from celery_sqlbeat.errors import NoSuchJob

if TYPE_CHECKING:
    from celery_sqlbeat.api import Job

F = TypeVar("F", bound=Callable[..., Any])


@click.command("adopt", cls=Command)
@click.option("--owner", required=True, help="The former name of the app, as in Celery(NAME).")
@yes_option
@json_option
@click.pass_context
def adopt_jobs(ctx: click.Context, owner: str, yes: bool, as_json: bool) -> None:
    """Adopt the jobs of a renamed app, so that the beats of this app claim them.

    A job that is not in this app's beat_schedule is disabled at the next poll. Jobs that only the
    table defines belong to no app: every beat of the namespace claims them already.
    """
    with handle_of(ctx) as beat:
        confirm(f"Make the jobs of {owner!r} this app's?", yes)
        adopted = beat.jobs.adopt(owner)
    if as_json:
        print_json({"owner": owner, "adopted": adopted})
    else:
        say(f"{len(adopted)} jobs of {owner} are this app's now")


@click.group(
    cls=Group,
    late={
        "import": "transfer:import_jobs",
        "export": "transfer:export_jobs",
        "adopt": "jobs:adopt_jobs",
    },
)
def jobs() -> None:
    """Manage jobs: list, show, define, pause, resume, run now, delete, import, export and adopt."""


def json_value(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    """Parse the JSON of an option."""
    try:
        return None if value is None else json.loads(value)
    except (ValueError, RecursionError):
        shown = "this" if param.name in ("args", "kwargs") else repr(value)  # they may be secret
        raise click.BadParameter(f"{shown} is not JSON", ctx, param) from None


def schedule_value(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    """Parse a number of seconds; any other text is read as a schedule later."""
    try:
        return None if value is None else float(value)
    except ValueError:
        return value


def names(text: str) -> list[str]:
    """Split a list of names or globs at its commas."""
    return [name.strip() for name in text.split(",")]


def policy_options(command: F) -> F:
    """Add the policies as options, in the order of the contract."""
    sensitive = click.option("--sensitive/--not-sensitive", default=None, help="Show its arguments nowhere.")
    command = sensitive(command)
    for name, kind in (
        ("dead_on", names),
        ("retry_on", names),
        ("retry_strategy", str),
        ("pool", str),
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
        listed = beat.jobs.list()
    if as_json:
        print_json([job.as_json() for job in listed])
        return
    headers = ["job", "schedule", "state", f"next run ({zone_label(utc)})"]
    rows = [[job.name, job.schedule, job.state, when(job.retry_at or job.next_run_time, utc)] for job in listed]
    print_table(headers, rows, "no jobs")


@jobs.command("show", cls=Command)
@click.argument("name")
@json_option
@click.pass_context
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show everything about one job."""
    with handle_of(ctx) as beat:
        job = beat.jobs.get(name)
        if job is None:
            raise NoSuchJob(name, beat.settings.namespace)
    _print(job, as_json)


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
    """Define a job; an existing job of this name is redefined.

    What is not given gets its default; only enabled or disabled stays as it is. A job that the
    beat_schedule defines takes policies and --enabled or --disabled only.
    """
    from celery_sqlbeat.celery_bridge.call_check import registered_tasks

    with handle_of(ctx) as beat:
        import_tasks(beat.app)
        job = beat.jobs.put(name, **definition)
        if job.task is not None and registered_tasks(beat.app, job.task) is None:
            warn_of_unregistered_task(job.task, name)
        if isinstance(job.options, dict) and job.options.get("task_id"):
            warn_of_task_id(job.options["task_id"], name)
    _print(job, as_json)


@jobs.command("pause", cls=Command)
@click.argument("name")
@click.option("--reason", default="paused", show_default=True, help="Why; it is shown wherever the job is.")
@click.option("--cancel-run", is_flag=True, help="Cancel what runs of it, and what waits.")
@click.option("--version", type=int, help="Only if the job is still at this version.")
@json_option
@click.pass_context
def pause(ctx: click.Context, name: str, reason: str, cancel_run: bool, version: int | None, as_json: bool) -> None:
    """Fire nothing more of a job; a run that goes on is not touched, unless you say so."""
    with handle_of(ctx) as beat:
        job = beat.jobs.pause(name, reason, version=version)
        cancelled = beat.runs.cancel_all(name, reason) if cancel_run else []
    _print_change(f"{name} is paused: {job.disabled_reason or reason}", job, as_json)
    for run in cancelled if not as_json else ():
        say(cancelled_line(run))


@jobs.command("resume", cls=Command)
@click.argument("name")
@click.option("--version", type=int, help="Only if the job is still at this version.")
@json_option
@click.pass_context
def resume(ctx: click.Context, name: str, version: int | None, as_json: bool) -> None:
    """Go on with a paused job at its next slot; what it missed is recorded as skipped."""
    with handle_of(ctx) as beat:
        job = beat.jobs.resume(name, version=version)
    if job.enabled:
        _print_change(f"{name} goes on; next run {when_twice(job.next_run_time)}", job, as_json)
    else:
        _print_change(f"{name} stays disabled ({job.disabled_reason}): its schedule has no slot left", job, as_json)


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
    say(f"{name} runs once more: run {run.id}")
    if job is not None and not job.enabled and job.disabled_reason != "finished":
        say(f"but not before it is resumed; it is paused: {job.disabled_reason}")


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
            raise NoSuchJob(name, beat.settings.namespace)
        remaining = beat.jobs.get(name)
    if as_json:
        print_json({"name": name, "deleted": remaining is None, "waits_for": remaining.run_id if remaining else None})
        return
    if remaining is None:
        say(f"{name} is deleted")
    else:
        say(f"{name} is deleted when its runs have ended: celery -A app sqlbeat runs list {name}")
    if job is not None and job.code_owner is not None:
        say(
            f"the beat_schedule of {job.code_owner} defines it: its beats bring it back at their next poll, as new; "
            f"to stop it, take the entry out of the code, or: celery -A app sqlbeat jobs pause {name}"
        )


def _print_change(text: str, job: Job, as_json: bool) -> None:
    print_json(job.as_json()) if as_json else say(text)


def _print(job: Job, as_json: bool) -> None:
    if as_json:
        print_json(job.as_json())
        return
    shown = job.as_json()
    facts = [
        ("job", job.name),
        ("state", job.state if job.enabled else f"{job.state} ({job.disabled_reason or 'paused'})"),
        ("task", str(job.task)),
        ("schedule", job.schedule + (f" in {job.timezone}" if job.timezone else "")),
        ("args", _json(shown["args"])),
        ("kwargs", _json(shown["kwargs"])),
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
