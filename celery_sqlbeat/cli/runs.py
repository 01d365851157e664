"""Run `celery sqlbeat runs`, `dead` and `explain`: the history and the dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_sqlbeat.cli import Command, handle_of
from celery_sqlbeat.cli.output import (
    cancelled_line,
    confirm,
    json_option,
    print_block,
    print_facts,
    print_json,
    print_table,
    progress_bar,
    say,
    utc_option,
    when,
    when_briefly,
    when_twice,
    yes_option,
    zone_label,
)
from celery_sqlbeat.config.validation import span
from celery_sqlbeat.errors import NoSuchJob, NoSuchRun

if TYPE_CHECKING:
    from celery_sqlbeat.api import Handle, Run
    from celery_sqlbeat.api.explain import Explanation


STATES = ("scheduled", "claimed", "running", "retry", "success", "dlq", "dispatched", "skipped", "cancelled")
REPLAYED = "replayed"  # the reason of a dead letter that was given another attempt
_DAY = 86400.0


@click.group()
def runs() -> None:
    """Show the history: every attempt, and every gap of skipped slots."""


@runs.command("list", cls=Command)
@click.argument("job", required=False)
@click.option("--state", type=click.Choice(STATES), help="Only attempts in this state.")
@click.option("--one-off", is_flag=True, help="Only one-offs.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many, the newest.")
@json_option
@utc_option
@click.pass_context
def list_runs(
    ctx: click.Context, job: str | None, state: str | None, one_off: bool, limit: int, as_json: bool, utc: bool
) -> None:
    """List the newest attempts, of one JOB or of all; of a one-off the task stands for its job."""
    with handle_of(ctx) as beat:
        attempts = beat.runs.list(job, state=state, limit=limit, one_off=one_off)
    if as_json:
        print_json([run.as_json() for run in attempts])
        return
    headers = ["run", "job", f"slot ({zone_label(utc)})", "no.", "state"]
    rows = [
        [run.id, name_of(run), when_briefly(run.scheduled_for, utc), str(run.attempt), state_of(run)]
        for run in attempts
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
        raise NoSuchRun(run_id)
    if as_json:
        print_json(run.as_json())
        return
    facts = [
        ("run", run.id),
        ("task" if run.job_name is None else "job", name_of(run)),
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
    if run.effects_done:
        facts.append(("effects", "done: another attempt does not do them again"))
    if run.due_at is not None:
        facts.append(("due", when_twice(run.due_at)))
    if run.error is not None:
        facts += [("error" if at == 0 else "", line) for at, line in enumerate(run.error.splitlines())]
    print_facts(facts)
    if run.traceback is not None:
        print_block(run.traceback)


def name_of(run: Run) -> str:
    """Return the name of its job; of a one-off, that of its task."""
    return run.job_name or run.task or "-"


@runs.command("cancel", cls=Command)
@click.argument("run_id")
@click.option("--reason", default="", help="Why; it is part of the outcome.")
@json_option
@click.pass_context
def cancel(ctx: click.Context, run_id: str, reason: str, as_json: bool) -> None:
    """End a run that waits, or have its worker stop it; its job goes on with the next slot."""
    with handle_of(ctx) as beat:
        run = beat.runs.cancel(run_id, reason)
    print_json(run.as_json()) if as_json else say(cancelled_line(run))


def state_of(run: Run) -> str:
    """Return the state and its reason."""
    several = f"{run.slots} " if run.slots > 1 else ""
    return several + run.state + (f" ({run.reason})" if run.reason else "")


job_option = click.option("--job", help="All dead letters of this job.")
all_option = click.option("--all", "everything", is_flag=True, help="All dead letters.")


@click.group()
def dead() -> None:
    """Manage the dead letters: slots whose attempts have all failed."""


@dead.command("list", cls=Command)
@click.argument("job", required=False)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many, the oldest.")
@json_option
@utc_option
@click.pass_context
def list_dead(ctx: click.Context, job: str | None, limit: int, as_json: bool, utc: bool) -> None:
    """List the dead letters, of one JOB or of all."""
    with handle_of(ctx) as beat:
        letters = beat.dead.list(job, limit=limit)
        _refuse_unknown(beat, job, letters)
    if as_json:
        print_json([letter.as_json() for letter in letters])
        return
    headers = ["run", "job", f"slot ({zone_label(utc)})", "error"]
    rows = [
        [
            letter.id,
            name_of(letter),
            when_briefly(letter.scheduled_for, utc),
            REPLAYED if letter.reason == REPLAYED else letter.error or "-",
        ]
        for letter in letters
    ]
    print_table(headers, rows, "no dead letters", ids_first=True)


@dead.command("replay", cls=Command)
@click.argument("run_ids", nargs=-1, metavar="[RUN]...")
@job_option
@all_option
@json_option
@click.pass_context
def replay(ctx: click.Context, run_ids: tuple[str, ...], job: str | None, everything: bool, as_json: bool) -> None:
    """Give dead letters another attempt, under a new run id; each of them once.

    One whose slot has a later attempt, or one that is still open, is left as it is.
    """
    _refuse_nothing(run_ids, job, everything)
    skipped: list[tuple[Run, str]] = []
    with handle_of(ctx) as beat, progress_bar("replaying") as progress:
        replayed = beat.dead.replay(
            run_ids or None, job=job, progress=progress, skipped=lambda *letter: skipped.append(letter)
        )
        if not replayed and not run_ids and job is not None:
            _refuse_unknown(beat, job, beat.dead.list(job, limit=1))
    for run, why in skipped:
        say(f"{name_of(run)}: run {run.id} is not replayed: {why}", err=True)
    if as_json:
        print_json([run.as_json() for run in replayed])
        return
    for run in replayed:
        say(f"{name_of(run)}: attempt {run.attempt} waits as run {run.id}")
    if not replayed:
        click.echo("nothing to replay" if skipped else "nothing to replay: these were replayed before")


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


def _refuse_unknown(beat: Handle, job: str | None, letters: list[Run]) -> None:
    """Refuse a job that is not there, unless it has left dead letters: its name may be mistyped."""
    if job is not None and not letters and beat.jobs.get(job) is None:
        raise NoSuchJob(job, beat.settings.namespace)


@click.command(cls=Command)
@click.argument("name")
@click.option("--slots", type=click.IntRange(1, 1000), default=10, show_default=True, help="Of so many last slots.")
@json_option
@click.pass_context
def explain(ctx: click.Context, name: str, slots: int, as_json: bool) -> None:
    """Explain why a job ran or did not run in its last slots, who holds it, and its next fires."""
    with handle_of(ctx) as beat:
        explanation = beat.explain(name, slots)
    if as_json:
        print_json(explanation.as_json())
    else:
        _print(explanation)


def _print(explanation: Explanation) -> None:
    say(f"{explanation.job.name} at {when_twice(explanation.job.read_at)}")
    for sentence in explanation.now:
        say(f"- {sentence}")
    click.echo("\nlast slots")
    headers = list(dict.fromkeys([f"slot ({zone_label()})", "slot (UTC)"]))  # one, where that is the same
    rows = [
        [*(when(slot.scheduled_for, utc) for utc in (False, True)[-len(headers) :]), slot.says]
        for slot in explanation.slots
    ]
    print_table([*headers, "what became of it"], rows, "none so far")
    click.echo("\nnext fires")
    for remark in explanation.remarks:
        say(f"- {remark}")
    rows = [
        [f"{fire.local:%a %Y-%m-%d %H:%M:%S %Z}", when(fire.at, utc=True), fire.note or ""]
        for fire in explanation.next_fires
    ]
    print_table(["time of the job", "UTC", ""], rows, "none that can be foretold")
