"""Run `celery sqlbeat jobs export` and `jobs import`."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, TYPE_CHECKING

import click

from celery_sqlbeat.cli import (
    Command,
    handle_of,
    import_tasks,
    one_line,
    warn_of_task_id,
    warn_of_unregistered_task,
)
from celery_sqlbeat.cli.output import (
    json_option,
    print_json,
    print_table,
    progress_bar,
    say,
    utc_option,
    when,
    zone_label,
)

if TYPE_CHECKING:
    from celery_sqlbeat.api import Handle
    from celery_sqlbeat.errors import LineError
    from celery_sqlbeat.transfer.jsonl import CheckedLine, SourceJobs
    from celery_sqlbeat.transfer.plan import ImportStep

SOURCES = ("django-celery-beat", "redbeat", "shelve", "beat_schedule")
_SHOWN_ERRORS = 20  # lines; the others come up once these are corrected
_WORDS = {"add": "added", "change": "changed", "code": "of the code", "same": "the same", "left": "left behind"}
_DRY_RUN_WORDS = {**_WORDS, "add": "to add", "change": "to change"}


@click.command("export", cls=Command)
@click.argument("file", required=False, default="-", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--no-state", is_flag=True, help="Definitions only: neither last nor next runs, nor why one is disabled.")
@click.option("--with-secrets", is_flag=True, help="Arguments in plain text, also those of sensitive jobs.")
@click.pass_context
def export_jobs(ctx: click.Context, file: str, no_state: bool, with_secrets: bool) -> None:
    """Write the jobs as JSON Lines to FILE or to the terminal; `jobs import` reads them.

    With sqlbeat_payload_key arguments are written encrypted, and are read where that key is set.
    Jobs that a beat_schedule defines are left out: the code brings them.
    """
    from celery_sqlbeat.transfer.jsonl import export_lines

    exported, of_code, failed = 0, 0, []
    with handle_of(ctx) as beat, _open_output(file) as output, progress_bar("exporting", _total(file, beat)) as step:
        for line in export_lines(beat.ready(), beat.rules, not no_state, with_secrets):
            if isinstance(line, str):
                print(line, file=output)
                exported += 1
            elif line is None:
                of_code += 1
            else:
                failed.append(line)
            step(1)
    click.echo(f"{exported} jobs written" + (f", {of_code} left to their code" if of_code else ""), err=True)
    for left_out in failed:
        say(f"Error: job {left_out.name!r} is left out: {left_out.reason}", err=True)
    ctx.exit(1 if failed else 0)


def _total(file: str, beat: Handle) -> int | None:
    return None if file == "-" else beat.store.counts().total


@contextmanager
def _open_output(file: str) -> Iterator[IO[str]]:
    """Open a file that takes its place only when it is complete; `-` is the terminal."""
    if file == "-":
        yield sys.stdout
        return
    part = f"{file}.part"
    try:
        with open(part, "w", encoding="utf-8", newline="\n") as output:
            yield output
        os.replace(part, file)
    finally:
        with suppress(FileNotFoundError):
            os.remove(part)


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
    """Import jobs from FILE (JSON Lines, - for standard input), or --from another scheduler.

    A line has name, task and schedule, and may have args, kwargs, options, enabled, start and
    policies. An existing job takes the definition of its line and keeps its last and next runs.
    All lines are checked before the first is written, and each batch of 500 jobs is written as a
    whole or not at all.

    Jobs of another scheduler keep their last runs, so that each fires next when it would have
    fired there; stop that scheduler first. FILE is then stock beat's own file, with shelve only.
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


def _run(steps: Iterator[ImportStep], everything: bool) -> tuple[Counter[str], list[ImportStep]]:
    """Run the steps and count them; keep only those that are shown, as a file may be long."""
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


def _from_scheduler(beat: Handle, source: str, file: str | None, dry_run: bool) -> Iterator[ImportStep]:
    from celery_sqlbeat.transfer.plan import import_source

    source_jobs = _source_jobs(beat, source, file)
    with progress_bar("importing", len(source_jobs.jobs)) as step:
        yield from import_source(beat.store, beat.settings, beat.rules, source_jobs, dry_run, step)


def _source_jobs(beat: Handle, source: str, file: str | None) -> SourceJobs:
    if source == "django-celery-beat":
        from celery_sqlbeat.transfer.from_django import from_django

        return from_django(beat.app, beat.settings)
    from celery_sqlbeat.transfer import from_entries

    if source == "shelve":
        return from_entries.from_shelve(beat.app, beat.settings, file)
    read = from_entries.from_redbeat if source == "redbeat" else from_entries.from_beat_schedule
    return read(beat.app, beat.settings)


def _from_file(beat: Handle, file: str, dry_run: bool, as_json: bool) -> Iterator[ImportStep]:
    from celery_sqlbeat.celery_bridge.call_check import check_call, registered_tasks
    from celery_sqlbeat.transfer.jsonl import read_lines
    from celery_sqlbeat.transfer.plan import import_in_batches

    import_tasks(beat.app)
    lines = _lines(file)
    unregistered: dict[str, str] = {}
    replaced: dict[str, object] = {}
    errors: list[LineError] = []
    count = 0
    with progress_bar("checking") as step:
        for line in read_lines(lines(), beat.rules, partial(check_call, beat.app)):
            count += 1
            step(1)
            if isinstance(line, Exception):
                errors.append(line)
                continue
            call = line.spec.definition.call
            if registered_tasks(beat.app, call.task_name) is None:
                unregistered.setdefault(call.task_name, line.job.name)
            if call.options.get("task_id") and len(replaced) < _SHOWN_ERRORS:
                replaced[line.job.name] = call.options["task_id"]
    if errors:
        _refuse(errors, as_json)
    for task, name in list(unregistered.items())[:_SHOWN_ERRORS]:
        warn_of_unregistered_task(task, name)
    for name, task_id in replaced.items():
        warn_of_task_id(task_id, name)

    with progress_bar("importing", count) as step:
        checked = ((line.job, line.spec) for line in _checked(read_lines(lines(), beat.rules)))
        yield from import_in_batches(beat.store, beat.rules, checked, dry_run, step)


def _checked(lines: Iterable[CheckedLine | LineError]) -> Iterator[CheckedLine]:
    for line in lines:
        if isinstance(line, Exception):  # the file has changed since it was checked
            raise line
        yield line


def _lines(file: str) -> Callable[[], Iterable[str]]:
    """Return a function that reads the lines again each time; standard input is kept."""
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
        facts = [{"line": error.line, "field": error.field or None, "error": str(error)} for error in errors]
        print_json({"imported": False, "errors": facts})
    else:
        for error in errors[:_SHOWN_ERRORS]:
            say(str(error), err=True)
        if len(errors) > _SHOWN_ERRORS:
            click.echo(f"... and {len(errors) - _SHOWN_ERRORS} more", err=True)
    lines = "1 line" if len(errors) == 1 else f"{len(errors)} lines"
    raise click.ClickException(f"{lines} cannot work, so nothing was written: put them right and import again")


def _show(counts: Counter[str], shown: list[ImportStep], dry_run: bool, as_json: bool, utc: bool) -> None:
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
    words = _DRY_RUN_WORDS if dry_run else _WORDS
    said = [f"{counts[action]} {word}" for action, word in words.items() if counts[action]]
    click.echo(", ".join(said) or "there are no jobs")
    if dry_run:
        click.echo("nothing was written (--dry-run)")
