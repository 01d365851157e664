"""`celery sqlbeat jobs import`: jobs from JSON Lines, or from the store of another scheduler."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

from celery_sqlbeat.cli.command import Command, handle_of, import_tasks, one_line, warn_of_stranger
from celery_sqlbeat.cli.output import json_option, print_json, print_table, progress_bar, utc_option, when, zone_label

if TYPE_CHECKING:
    from celery_sqlbeat.errors import LineError
    from celery_sqlbeat.handle import Handle
    from celery_sqlbeat.transfer.arrivals import Shop
    from celery_sqlbeat.transfer.lines import Numbered
    from celery_sqlbeat.transfer.plan import Step

SOURCES = ("django-celery-beat", "redbeat", "shelve", "beat_schedule")
_SHOWN_ERRORS = 20  # lines; who made more mistakes mends these first
_WORDS = {"add": "added", "change": "changed", "code": "of the code", "same": "the same", "left": "left behind"}
_WOULD = {**_WORDS, "add": "to add", "change": "to change"}


@click.command("import", cls=Command)
@click.argument("file", required=False, type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--from", "source", type=click.Choice(SOURCES), help="The scheduler to take over.")
@click.option("--dry-run", is_flag=True, help="Only print what would become of each job; write nothing.")
@json_option
@utc_option
@click.pass_context
def import_jobs(
    ctx: click.Context, file: str | None, source: str | None, dry_run: bool, as_json: bool, utc: bool
) -> None:
    """Bring jobs in: from FILE (JSON Lines, - for the terminal), or --from another scheduler.

    A line has name, task and schedule, and may have args, kwargs, options, enabled, start and policies. A job that is
    there already becomes what its line says; its last and next runs stay. All lines are checked before the first is
    written, and each 500 jobs are written together or not at all.

    From another scheduler jobs come with their last runs, so that each fires next when it would have fired there; stop
    that scheduler first. FILE is then stock beat's own file, with shelve only.
    """
    if file is None and source is None:
        raise click.UsageError(f"name a file of JSON Lines, or one of --from {', '.join(SOURCES)}", ctx)
    if file is not None and source not in (None, "shelve"):
        raise click.UsageError(f"--from {source} takes no file: the app's settings say where it is", ctx)
    with handle_of(ctx) as beat:
        beat.ready()
        if source is None:
            steps = _from_file(beat, file or "-", dry_run, as_json)
        else:
            steps = _from_scheduler(beat, source, file, dry_run)
        counts, shown = _run(steps, everything=dry_run or as_json or source is not None)
    _show(counts, shown, dry_run, as_json, utc)
    ctx.exit(1 if source is None and counts["left"] else 0)


def _run(steps: Iterator[Step], everything: bool) -> tuple[Counter[str], list[Step]]:
    """Go through the steps; what is to be shown of them is kept, and a long file has many that are not."""
    from celery_sqlbeat.errors import SqlbeatError

    counts: Counter[str] = Counter()
    shown = []
    try:
        for step in steps:
            counts[step.action] += 1
            if everything or step.action == "left":
                shown.append(step)
    except SqlbeatError as error:
        if not counts.total():
            raise
        raise click.ClickException(
            f"{one_line(error)}; {counts.total()} jobs were done before that: import again to go on"
        ) from error
    return counts, shown


def _from_scheduler(beat: Handle, source: str, file: str | None, dry_run: bool) -> Iterator[Step]:
    from celery_sqlbeat.transfer.bringing import bring_shop

    shop = _shop(beat, source, file)
    with progress_bar("importing", len(shop.arrivals)) as step:
        yield from bring_shop(beat.store, beat.settings, beat.rules, shop, dry_run, step)


def _shop(beat: Handle, source: str, file: str | None) -> Shop:
    if source == "shelve":
        from celery_sqlbeat.transfer.from_code import from_shelve

        return from_shelve(beat.app, beat.settings, file)
    if source == "beat_schedule":
        from celery_sqlbeat.transfer.from_code import from_beat_schedule as read
    elif source == "redbeat":
        from celery_sqlbeat.transfer.from_redbeat import from_redbeat as read
    else:
        from celery_sqlbeat.transfer.from_django import from_django as read
    return read(beat.app, beat.settings)


def _from_file(beat: Handle, file: str, dry_run: bool, as_json: bool) -> Iterator[Step]:
    from celery_sqlbeat.beat.foreseeing import examine, registered
    from celery_sqlbeat.transfer.bringing import bring
    from celery_sqlbeat.transfer.lines import read_lines

    import_tasks(beat.app)
    lines = _lines(file)
    strangers: dict[str, str] = {}
    errors: list[LineError] = []
    count = 0
    with progress_bar("checking") as step:
        for found in read_lines(lines(), beat.rules, partial(examine, beat.app)):
            count += 1
            step(1)
            if isinstance(found, Exception):
                errors.append(found)
            elif registered(beat.app, task := found.wish.definition.call.task_name) is None:
                strangers.setdefault(task, found.arrival.name)
    if errors:
        _refuse(errors, as_json)
    for task, name in list(strangers.items())[:_SHOWN_ERRORS]:
        warn_of_stranger(task, name)

    with progress_bar("importing", count) as step:
        good = ((found.arrival, found.wish) for found in _good(read_lines(lines(), beat.rules)))
        yield from bring(beat.store, beat.rules, good, dry_run, step)


def _good(found: Iterable[Numbered | LineError]) -> Iterator[Numbered]:
    for one in found:
        if isinstance(one, Exception):  # the file has changed since it was checked
            raise one
        yield one


def _lines(file: str) -> Callable[[], Iterable[str]]:
    """The lines of a file, as often as they are asked for. What the terminal gives is kept."""
    if file == "-":
        kept = list(_decoded("standard input", sys.stdin.buffer))
        return lambda: kept
    return lambda: _lines_in(file)


def _lines_in(file: str) -> Iterator[str]:
    with open(file, "rb") as opened:
        yield from _decoded(file, opened)


def _decoded(name: str, lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise click.ClickException(f"{name}, line {number}: not UTF-8 ({error.reason})") from None


def _refuse(errors: list[LineError], as_json: bool) -> None:
    if as_json:
        facts = [{"line": one.line, "field": one.field or None, "error": str(one)} for one in errors]
        print_json({"imported": False, "errors": facts})
    else:
        for one in errors[:_SHOWN_ERRORS]:
            click.echo(str(one), err=True)
        if len(errors) > _SHOWN_ERRORS:
            click.echo(f"... and {len(errors) - _SHOWN_ERRORS} more", err=True)
    lines = "1 line" if len(errors) == 1 else f"{len(errors)} lines"
    raise click.ClickException(f"{lines} cannot work, so nothing was written: put them right and import again")


def _show(counts: Counter[str], shown: list[Step], dry_run: bool, as_json: bool, utc: bool) -> None:
    if as_json:
        print_json(
            {
                "imported": not dry_run,
                "counts": {action: counts[action] for action in _WORDS},
                "jobs": [step.as_json() for step in shown],
            }
        )
        return
    if shown:
        headers = ["job", "what", "schedule", f"last run ({zone_label(utc)})", "next run", "remarks"]
        rows = [
            [
                step.name,
                step.action,
                step.schedule or "-",
                when(step.last_run_time, utc),
                when(step.next_run_time, utc),
                "; ".join(step.remarks),
            ]
            for step in shown
        ]
        print_table(headers, rows, "no jobs")
    words = _WOULD if dry_run else _WORDS
    said = [f"{counts[action]} {word}" for action, word in words.items() if counts[action]]
    click.echo(", ".join(said) or "there are no jobs")
    if dry_run:
        click.echo("nothing was written (--dry-run)")
