"""Define, list, pause, resume, run, delete and adopt the jobs of a namespace: `beat.jobs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from celery_sqlbeat.api.job_input import LONGEST_REASON, JobSpec, JobText, draft_of, job_spec
from celery_sqlbeat.api.records import Job, Run, job_of, run_of
from celery_sqlbeat.api.reschedule import (
    Change,
    change_of,
    code_change_of,
    definition_of,
    first_run,
    gap_record,
    is_timed_by_code,
    resumption_of,
    update_of,
)
from celery_sqlbeat.config.validation import is_text
from celery_sqlbeat.environment import Ids
from celery_sqlbeat.errors import FieldError, JobBeingDeleted, NoSuchJob, StoreError, VersionConflict
from celery_sqlbeat.model import (
    FINISHED,
    LEFT_THE_CODE,
    PAUSED,
    AddJob,
    DeleteJob,
    JobRecord,
    NewRun,
    PauseJob,
    ResumeJob,
)
from celery_sqlbeat.model.definition import Call, Rules
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import ANY_VERSION, JobQuery, RunQuery

JobList = list[Job]  # in the class itself `list` is a method
JobRows = list[JobRecord]
NameList = list[str]

PAGE = 500  # rows that are read at a time
_TRIES = 10  # of a change without a version; a try fails only when somebody changes the job meanwhile
_RESERVED = (FINISHED, "deleted", LEFT_THE_CODE)  # reasons that this package gives and acts on


def job_pages(admin: Store, only_quarantined: bool = False) -> Iterator[JobRows]:
    """Read the jobs of a namespace by name, page by page."""
    query = JobQuery(only_quarantined=only_quarantined, page_size=PAGE)
    while page := [*admin.jobs(query).values()]:
        yield page
        query = replace(query, after_name=page[-1].job_name)


class Jobs:
    """`beat.jobs`. The beats notice every change within `sqlbeat_notice_interval`."""

    def __init__(
        self,
        store: Callable[[], Store],
        rules: Callable[[], Rules],
        adopt: Callable[[str], list[str]],
        check_call: Callable[[Call], None] = lambda _: None,
    ) -> None:
        """Take functions that give the store and the rules when they are first needed.

        `check_call` raises a FieldError for a call that could never be published.
        """
        self._store = store
        self._rules = rules
        self._adopt = adopt
        self._check_call = check_call
        self._ids = Ids()

    def put(
        self,
        name: str,
        *,
        task: str | Any | None = None,
        schedule: Any = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        enabled: bool | None = None,
        start: Any = None,
        version: int | None = None,
        cadence: str | None = None,
        overlap: str | None = None,
        max_parallel: int | None = None,
        misfire: str | None = None,
        misfire_grace: Any = None,
        catch_up_limit: int | None = None,
        max_retries: int | None = None,
        lock_timeout: Any = None,
        max_runtime: Any = None,
        timezone: str | None = None,
        jitter: Any = None,
        sensitive: bool | None = None,
        retry_strategy: str | None = None,
        retry_on: Sequence[str] | None = None,
        dead_on: Sequence[str] | None = None,
        pool: str | None = None,
    ) -> Job:
        """Define a job, a new one or again; what is not given gets its default.

        Only `enabled` is kept where it is not given, so that a deployment does not undo a pause.
        `schedule` is text (`every 5s`, `cron 0 3 * * *`), a number of seconds, a timedelta or a
        schedule of Celery.
        With the `version` that was read, the job must still be at it: VersionConflict.
        A job that the code defines takes `enabled` and the policies only.
        """
        policies = {
            "cadence": cadence,
            "overlap": overlap,
            "max_parallel": max_parallel,
            "misfire": misfire,
            "misfire_grace": misfire_grace,
            "catch_up_limit": catch_up_limit,
            "max_retries": max_retries,
            "lock_timeout": lock_timeout,
            "max_runtime": max_runtime,
            "timezone": timezone,
            "jitter": jitter,
            "sensitive": sensitive,
            "retry_strategy": retry_strategy,
            "retry_on": retry_on,
            "dead_on": dead_on,
            "pool": pool,
        }
        given = {"task": task, "schedule": schedule, "args": args, "kwargs": kwargs, "options": options, "start": start}

        def spec() -> JobSpec:
            checked = job_spec(self._rules(), name, enabled=enabled, **given, **policies)
            self._check_call(checked.definition.call)
            return checked

        def change(row: JobRecord) -> bool:
            if row.code_owner is not None:
                return self._change_code(row, given, enabled, policies)
            return self._change(row, spec())

        return self._retry(name, version, change, lambda: self._add(spec()))

    def get(self, name: str) -> Job | None:
        """Return the job of this name, or None."""
        row = self._row(name)
        return None if row is None else self._job(row)

    def list(self) -> JobList:
        """Return all jobs, by name."""
        return [*self]

    def __iter__(self) -> Iterator[Job]:
        """Iterate over all jobs by name, read page by page."""
        for page in job_pages(self._store()):
            yield from map(self._job, page)

    def pause(self, name: str, reason: str = PAUSED, *, version: int | None = None) -> Job:
        """Fire nothing more of a job, and say why; a run that goes on is not stopped."""
        if not is_text(reason) or not reason.strip() or len(reason) > LONGEST_REASON or reason in _RESERVED:
            allowed = f"write a text of 1 to {LONGEST_REASON} characters, but none of {', '.join(_RESERVED)}"
            raise FieldError("DisabledReason", reason, allowed)
        admin = self._store()

        def change(row: JobRecord) -> bool:
            return not row.enabled or bool(admin.write_jobs([PauseJob(name, reason, version=row.version)]).done)

        return self._retry(name, version, change)

    def resume(self, name: str, *, version: int | None = None) -> Job:
        """Resume a paused job at its next slot; missed ones are recorded as skipped (paused)."""
        admin = self._store()

        def change(row: JobRecord) -> bool:
            if row.enabled:
                return True
            at = resumption_of(row, self._rules())
            write = ResumeJob(
                name,
                version=row.version,
                next_run_time=at.next_run_time,
                gap=gap_record(row, at.gap, self._ids),
                finished=at.finished,
                fence=row.fence,
            )
            return bool(admin.write_jobs([write]).done)

        return self._retry(name, version, change)

    def run_now(self, name: str) -> Run:
        """Add one extra slot, now or as soon as the present run ends; the schedule stays.

        A paused job runs it when it is resumed.
        """
        admin = self._store()
        row = self._row(name)
        if row is None:
            raise NoSuchJob(name, self._store().namespace)
        (run_id,) = self._ids.run_ids(1)
        if not admin.enqueue([NewRun(run_id, row.job_id)]):
            raise JobBeingDeleted(name)
        runs = admin.runs(RunQuery(run_ids=[run_id]))
        if not runs:
            raise StoreError(f"the extra slot of {name!r} is gone already")
        return run_of(runs[0])

    def delete(self, name: str, *, force: bool = False, version: int | None = None) -> bool:
        """Delete a job once its runs have ended, or at once with `force`, which cancels them.

        Returns False where there is none. A message that was fired and forgotten may still run.
        """
        if self._store().write_jobs([DeleteJob(name, force=force, version=version)]).done:
            return True
        if version is not None and self._row(name) is not None:
            raise VersionConflict(name, version)
        return False

    def adopt(self, owner: str) -> NameList:
        """Make the jobs of a renamed app this app's; return their names.

        Only beats of the defining app claim the jobs of a `beat_schedule`. Raises AppIsAlive while
        the former app has a living beat.
        """
        return self._adopt(owner)

    def _retry(
        self,
        name: str,
        version: int | None,
        change: Callable[[JobRecord], bool],
        add: Callable[[], bool] | None = None,
    ) -> Job:
        """Read and change a job until no change comes between; with a version, only that one."""
        for _ in range(_TRIES):
            row = self._row(name)
            if version is not None and (row is None or row.version != version):
                raise VersionConflict(name, version)
            if row is None:
                if add is None:
                    raise NoSuchJob(name, self._store().namespace)
                done = add()
            elif row.delete_requested:
                if add is None or not self._is_gone(row):
                    raise JobBeingDeleted(name)
                done = False  # the next try adds it
            else:
                done = change(row)
            if done and (changed := self._row(name)) is not None:
                return self._job(changed)
        raise VersionConflict(name, ANY_VERSION if row is None else row.version)

    def _is_gone(self, row: JobRecord) -> bool:
        """Delete a job that is to be deleted and is free, where no beat has done it yet."""
        if row.locked_by is None:
            self._store().write_jobs([DeleteJob(row.job_name, version=row.version)])
        return self._row(row.job_name) is None

    def _job(self, row: JobRecord) -> Job:
        return job_of(row, self._rules().policies)

    def _row(self, name: str) -> JobRecord | None:
        return self._store().jobs(JobQuery(names=[name])).get(name) if isinstance(name, str) else None

    def _add(self, spec: JobSpec) -> bool:
        first = first_run(spec, self._store().pulse().now)
        draft = draft_of(spec.text, first, spec.enabled is not False, spec.start_at)
        return bool(self._store().write_jobs([AddJob(draft)]).done)

    def _change(self, row: JobRecord, spec: JobSpec) -> bool:
        before = None if is_timed_by_code(row) else definition_of(row, self._rules())
        change = change_of(row, before, spec)
        return change is None or self._update(row, spec.text, change, spec.start_at)

    def _change_code(
        self, row: JobRecord, given: Mapping[str, object], enabled: object, policies: Mapping[str, object]
    ) -> bool:
        change = code_change_of(row, given, enabled, policies, self._rules())
        return change is None or self._update(row, *change, row.start_at)

    def _update(self, row: JobRecord, text: JobText, change: Change, start_at: datetime | None) -> bool:
        write = update_of(row, text, start_at, change, self._ids)
        return bool(self._store().write_jobs([write]).done)
