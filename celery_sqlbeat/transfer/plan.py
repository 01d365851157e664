"""Decide what becomes of each imported job (added, changed, the same, left out), and write it.

A batch is written as a whole or not at all. The entries of a `beat_schedule` stay the code's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any

from celery_sqlbeat.api.job_input import JobSpec, draft_of, job_spec
from celery_sqlbeat.api.jobs import job_pages
from celery_sqlbeat.api.records import plain
from celery_sqlbeat.api.reschedule import (
    change_of,
    definition_of,
    first_run,
    is_timed_by_code,
    text_of,
    update_of,
)
from celery_sqlbeat.beat_schedule.entries import shown_release
from celery_sqlbeat.beat_schedule.plan import SchedulePlanner, first_runs
from celery_sqlbeat.beat_schedule.sync import import_code
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.environment import Ids
from celery_sqlbeat.errors import FieldError, StoreError
from celery_sqlbeat.model import (
    CODE_SCHEDULE,
    FINISHED,
    PAUSED,
    AddJob,
    CodeAddition,
    CodeDefinition,
    JobRecord,
    PauseJob,
    UpdateJob,
)
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.schedule import Timeline
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import JobQuery
from celery_sqlbeat.transfer.jsonl import ImportedJob, LeftOut, SourceJobs

ADD, CHANGE, SAME, CODE, LEFT_OUT = "add", "change", "same", "code", "left"
BATCH = 500  # jobs of one transaction
_TRIES = 5  # of a batch; a try fails only when somebody changes the same jobs meanwhile
_PAUSED = "disabled in the old scheduler"

Progress = Callable[[int], None]


@dataclass(frozen=True)
class ImportStep:
    """The outcome of one job in an import, and what is written for it."""

    name: str
    action: str
    schedule: str | None = None
    next_run_time: datetime | None = None
    last_run_time: datetime | None = None
    remarks: tuple[str, ...] = ()
    write: AddJob | UpdateJob | None = None

    def as_json(self) -> dict[str, Any]:
        """Return what is shown of it, as plain values for JSON."""
        shown = ("name", "action", "schedule", "next_run_time", "last_run_time", "remarks")
        return {name: plain(getattr(self, name)) for name in shown}


def check_jobs(jobs: Sequence[ImportedJob], rules: Rules) -> tuple[list[tuple[ImportedJob, JobSpec]], list[LeftOut]]:
    """Split jobs into those that the table can take, and the others with their reasons."""
    good: list[tuple[ImportedJob, JobSpec]] = []
    left_out: list[LeftOut] = []
    for job in jobs:
        try:
            good.append((job, job_spec(rules, **{**job.fields, "name": job.name})))
        except FieldError as error:
            left_out.append(LeftOut(job.name, str(error)))
    return good, left_out


def left_out_step(left_out: LeftOut) -> ImportStep:
    """Return the step of a job that is not imported."""
    return ImportStep(left_out.name, LEFT_OUT, remarks=(left_out.reason,))


def plan_step(
    job: ImportedJob, spec: JobSpec, row: JobRecord | None, now: datetime, rules: Rules, ids: Ids | None = None
) -> ImportStep:
    """Decide what becomes of one job, given the row of its name.

    An existing job takes the definition and keeps its own state, which is newer than the source's.
    """
    if row is None:
        return _addition(job, spec, now)
    if row.code_owner is not None:
        return left_out_step(LeftOut(job.name, f"the beat_schedule of {row.code_owner} defines it: change it there"))
    if row.delete_requested:
        return left_out_step(LeftOut(job.name, "the job of this name is deleted as soon as its run has ended"))
    # One in quarantine has no definition, and this one may repair it.
    before = None if is_timed_by_code(row) else definition_of(row, rules)
    to = None if _has_finished(row, spec) else change_of(row, before, spec)
    at = row.next_run_time if to is None or not to.moves else to.next_run_time
    step = ImportStep(
        job.name,
        SAME if to is None else CHANGE,
        spec.text.schedule,
        at if isinstance(at, datetime) else None,
        row.last_run_time if isinstance(row.last_run_time, datetime) else None,
    )
    if to is None:
        return step
    return replace(step, remarks=job.remarks, write=update_of(row, spec.text, spec.start_at, to, ids or Ids()))


def _has_finished(row: JobRecord, spec: JobSpec) -> bool:
    """Tell whether this schedule has finished: importing it again does not run a `once` again."""
    same = text_of(row)._replace(interval_minutes=None) == spec.text and row.start_at == spec.start_at
    return same and not row.enabled and row.disabled_reason == FINISHED and spec.enabled is not True


def _addition(job: ImportedJob, spec: JobSpec, now: datetime) -> ImportStep:
    try:
        first = _first_slot(job, spec, now)
    except FieldError as error:
        return left_out_step(LeftOut(job.name, str(error)))
    enabled = spec.enabled is not False
    draft = draft_of(spec.text, first, enabled, spec.start_at)
    reason = None if enabled else job.disabled_reason or PAUSED
    return ImportStep(
        job.name,
        ADD,
        spec.text.schedule,
        first,
        job.last_run_time,
        job.remarks,
        AddJob(draft, last_run_time=job.last_run_time, disabled_reason=reason),
    )


def _first_slot(job: ImportedJob, spec: JobSpec, now: datetime) -> datetime | None:
    """Return the first slot: where the old scheduler would have fired, even if that has passed."""
    if job.finished:
        return None
    if job.next_run_time is not None:
        return job.next_run_time
    timeline = spec.definition.timeline
    if job.counts_from is not None and isinstance(timeline, Timeline):
        first = timeline.first_slot(job.counts_from, spec.start_at)
        if first is not None:
            return first
    return first_run(spec, now)


def import_in_batches(
    store: Store,
    rules: Rules,
    jobs: Iterable[tuple[ImportedJob, JobSpec]],
    dry_run: bool = False,
    progress: Progress = lambda _: None,
) -> Iterator[ImportStep]:
    """Import jobs batch by batch; yield what became of each, or with `dry_run` what would."""
    ids = Ids()
    remaining = iter(jobs)
    while batch := list(islice(remaining, BATCH)):
        yield from _import_batch(store, rules, batch, ids, dry_run)
        progress(len(batch))


def import_source(
    store: Store,
    settings: Settings,
    rules: Rules,
    source_jobs: SourceJobs,
    dry_run: bool = False,
    progress: Progress = lambda _: None,
) -> Iterator[ImportStep]:
    """Import everything of a scheduler: the entries of the code first, then its own jobs."""
    yield from import_entries(store, settings, rules, source_jobs, dry_run)
    good, bad = check_jobs(source_jobs.jobs, rules)
    yield from import_in_batches(store, rules, good, dry_run, progress)
    yield from map(left_out_step, sorted([*source_jobs.left_out, *bad]))


def _import_batch(
    store: Store, rules: Rules, batch: Sequence[tuple[ImportedJob, JobSpec]], ids: Ids, dry_run: bool
) -> list[ImportStep]:
    lost: set[str] = set()
    for _ in range(_TRIES):
        rows = store.jobs(JobQuery(names=[job.name for job, _ in batch]))
        now = store.pulse().now
        steps = [plan_step(job, spec, rows.get(job.name), now, rules, ids) for job, spec in batch]
        if dry_run:
            return steps
        writes = [step.write for step in steps if step.write is not None]
        lost = store.write_jobs(writes, together=True).conflicts
        if not lost:
            return steps
    raise StoreError(f"somebody else keeps changing {', '.join(sorted(lost)[:5])}: try again")


def import_entries(
    store: Store, settings: Settings, rules: Rules, source_jobs: SourceJobs, dry_run: bool
) -> list[ImportStep]:
    """Import the entries of the code; return what became of each, or with `dry_run` what would."""
    code = source_jobs.code
    if not code.entries:
        return []
    now = store.pulse().now
    rows = _existing_rows(store, source_jobs)
    plan = SchedulePlanner(code, rules, first_runs(code, now, source_jobs.runs), source_jobs.runs)
    additions = {
        addition.definition.job_name: addition
        for addition in plan(now, []).additions
        if addition.definition.job_name not in rows
    }
    left_out: dict[str, str] = {}
    if not dry_run:
        done = import_code(store, code.owner, code.release, code.told(), plan, settings.beat_alive)
        if done.is_stale:
            raise StoreError(f"somebody else keeps changing the jobs of {code.owner}: try again")
        newer = code.entries.keys() if done.beside.newer is None else code.entries.keys() & done.beside.newer
        reason = f"release {shown_release(done.winner)} of {code.owner} has a live beat and defines the jobs"
        left_out.update(dict.fromkeys(newer, reason))
        if newer == code.entries.keys():
            return [left_out_step(LeftOut(name, why)) for name, why in sorted(left_out.items())]
        left_out.update({name: f"the database refuses its row: {why}" for name, why in done.refused.items()})
        paused = sorted(source_jobs.paused & {*done.added})
        store.write_jobs([PauseJob(name, _PAUSED) for name in paused])
    steps = [left_out_step(LeftOut(name, why)) for name, why in left_out.items()]
    steps += [_addition_step(addition, source_jobs) for name, addition in additions.items() if name not in left_out]
    steps += [
        step
        for name, row in rows.items()
        if name not in left_out and (step := _existing_step(row, source_jobs)) is not None
    ]
    return sorted(steps, key=lambda step: step.name)


def _existing_rows(store: Store, source_jobs: SourceJobs) -> Mapping[str, JobRecord]:
    """Read the rows of these names, and the other rows of this code."""
    code = source_jobs.code
    return {
        row.job_name: row
        for page in job_pages(store)
        for row in page
        if row.code_owner == code.owner or row.job_name in code.entries
    }


def _addition_step(addition: CodeAddition, source_jobs: SourceJobs) -> ImportStep:
    definition = addition.definition
    remarks = [f"the beat_schedule of {source_jobs.code.owner} goes on to define it"]
    if definition.schedule == CODE_SCHEDULE:
        remarks.append("only the code knows its schedule")
    if definition.job_name in source_jobs.paused:
        remarks.append(_PAUSED)
    at, last = addition.next_run_time, addition.last_run_time
    return ImportStep(definition.job_name, CODE, definition.schedule, at, last, tuple(remarks))


def _existing_step(row: JobRecord, source_jobs: SourceJobs) -> ImportStep | None:
    name = row.job_name
    if row.code_owner != source_jobs.code.owner:
        return left_out_step(LeftOut(name, f"a job of {row.code_owner or 'the table'} has this name already"))
    if name in source_jobs.code.entries:
        definition = source_jobs.code.entries[name].definition
        action, remark = SAME, "a beat has brought it already"
        if _differs(row, definition):
            action, remark = CHANGE, "its entry has changed since a beat brought it"
        return ImportStep(name, action, definition.schedule, row.next_run_time, row.last_run_time, (remark,))
    if row.enabled and name not in source_jobs.code.wrong:
        return ImportStep(name, CHANGE, row.schedule, None, row.last_run_time, ("it left the beat_schedule: disabled",))
    return None


def _differs(row: JobRecord, definition: CodeDefinition) -> bool:
    current = (row.task_name, row.schedule, row.args, row.kwargs, row.options, row.code_key)
    _, task_name, schedule, _, args, kwargs, options, code_key = definition
    return current != (task_name, schedule, args, kwargs, options, code_key)
