"""The jobs of a namespace: define, look, pause, resume, run now, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from celery_sqlbeat.checks import is_text
from celery_sqlbeat.definition import Call, Definition, Rules, read_definition
from celery_sqlbeat.errors import FieldError, JobGoes, NoSuchJob, StoreError, VersionConflict
from celery_sqlbeat.handle.code_jobs import code_change_of, resumption_of
from celery_sqlbeat.handle.drafting import LONGEST_REASON, Text, Wish, draft_of, wish
from celery_sqlbeat.handle.records import Job, Run, job_of, run_of
from celery_sqlbeat.handle.rescheduling import Change, change_of, fence_of, first_run, gap_record, text_of
from celery_sqlbeat.ids import Ids
from celery_sqlbeat.model import FINISHED, LEFT_THE_CODE, PAUSED, GapRecord, JobRecord
from celery_sqlbeat.schedule import Gap
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.protocol import ANY_VERSION

AllJobs = list[Job]  # in the class itself `list` is a method
Names = list[str]

PAGE = 500  # rows that are read at a time
_TRIES = 10  # of a change without a version; each loses only to a change that somebody else made meanwhile
_RESERVED = (FINISHED, "deleted", LEFT_THE_CODE)  # reasons that this package gives, and acts upon


class Jobs:
    """`beat.jobs`. Every change is noticed by the beats within `sqlbeat_notice_interval`."""

    def __init__(
        self,
        store: Callable[[], Store],
        rules: Callable[[], Rules],
        adopt: Callable[[str], list[str]],
        examine: Callable[[Call], None] = lambda _: None,
    ) -> None:
        """Store, rules and adoption are asked for when they are first needed.

        `examine` raises a FieldError for a call that could never be published.
        """
        self._store = store
        self._rules = rules
        self._adopt = adopt
        self._examine = examine
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
    ) -> Job:
        """Define a job: a new one, or what is there becomes this. What is not given has its default.

        Only `enabled` stays as it is where it is not given, so that a deployment does not undo a pause.
        `schedule` is text (`every 5s`, `cron 0 3 * * *`), a number of seconds, a timedelta or a schedule of Celery.
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
        }
        given = {"task": task, "schedule": schedule, "args": args, "kwargs": kwargs, "options": options, "start": start}

        def wanted() -> Wish:
            found = wish(self._rules(), name, enabled=enabled, **given, **policies)
            self._examine(found.definition.call)
            return found

        def change(row: JobRecord) -> bool:
            if row.code_owner is not None:
                return self._change_code(row, given, enabled, policies)
            return self._change(row, wanted())

        return self._try(name, version, change, lambda: self._add(wanted()))

    def get(self, name: str) -> Job | None:
        """The job of this name; None where there is none."""
        row = self._row(name)
        return None if row is None else job_of(row)

    def list(self) -> AllJobs:
        """All jobs, by name."""
        return [*self]

    def __iter__(self) -> Iterator[Job]:
        """All jobs, by name, read page by page."""
        admin, after = self._store().for_admin(), ""
        while page := admin.list_jobs(PAGE, after):
            yield from map(job_of, page)
            after = page[-1].job_name

    def pause(self, name: str, reason: str = PAUSED, *, version: int | None = None) -> Job:
        """Fire nothing more of a job, and say why. A run that goes on is not touched."""
        if not is_text(reason) or not reason.strip() or len(reason) > LONGEST_REASON or reason in _RESERVED:
            allowed = f"write a text of 1 to {LONGEST_REASON} characters, but none of {', '.join(_RESERVED)}"
            raise FieldError("DisabledReason", reason, allowed)
        admin = self._store().for_admin()

        def change(row: JobRecord) -> bool:
            return not row.enabled or admin.pause(name, reason, row.version) is not None

        return self._try(name, version, change)

    def resume(self, name: str, *, version: int | None = None) -> Job:
        """Go on with a paused job at its next slot; those that it missed are recorded as skipped (paused)."""
        admin = self._store().for_admin()

        def change(row: JobRecord) -> bool:
            if row.enabled:
                return True
            at = resumption_of(row, self._rules())
            gap = self._gap(row, at.gap)
            return admin.resume(name, row.version, at.next_run_time, gap, at.finished, row.fence) is not None

        return self._try(name, version, change)

    def run_now(self, name: str) -> Run:
        """Add one extra slot: it runs now, or as soon as the present run ends, and leaves the schedule alone.

        A paused job runs it when it is resumed.
        """
        admin = self._store().for_admin()
        row = self._row(name)
        if row is None:
            raise NoSuchJob(name, self._store().namespace)
        (run_id,) = self._ids.run_ids(1)
        if not admin.add_slot(run_id, row.job_id):
            raise JobGoes(name)
        run = admin.run(run_id)
        if run is None:
            raise StoreError(f"the extra slot of {name!r} is gone already")
        return run_of(run)

    def delete(self, name: str, *, force: bool = False, version: int | None = None) -> bool:
        """Delete a job once its runs have ended, or at once with `force`, which cancels them; False: there is none.

        A message that was fired and forgotten, and that no worker has begun, may still run.
        """
        if self._store().for_admin().delete(name, force, ANY_VERSION if version is None else version):
            return True
        if version is not None and self._row(name) is not None:
            raise VersionConflict(name, version)
        return False

    def adopt(self, owner: str) -> Names:
        """Make the jobs of an app that was renamed this app's, so that its beats claim them; returns their names.

        Only beats of their own app claim what a `beat_schedule` has defined. AppIsAlive while one of those lives.
        """
        return self._adopt(owner)

    def _try(
        self,
        name: str,
        version: int | None,
        change: Callable[[JobRecord], bool],
        add: Callable[[], bool] | None = None,
    ) -> Job:
        """Change what was read, until nobody else has changed it meanwhile; with a version only that one."""
        for _ in range(_TRIES):
            row = self._row(name)
            if version is not None and (row is None or row.version != version):
                raise VersionConflict(name, version)
            if row is None:
                if add is None:
                    raise NoSuchJob(name, self._store().namespace)
                done = add()
            elif row.delete_requested:
                raise JobGoes(name)
            else:
                done = change(row)
            if done and (found := self._row(name)) is not None:
                return job_of(found)
        raise VersionConflict(name, ANY_VERSION if row is None else row.version)

    def _row(self, name: str) -> JobRecord | None:
        return self._store().for_admin().jobs([name]).get(name) if isinstance(name, str) else None

    def _add(self, wanted: Wish) -> bool:
        first = first_run(wanted, self._store().nodes().clock())
        draft = draft_of(wanted.text, first, wanted.enabled is not False, wanted.start_at)
        return bool(self._store().for_admin().add_jobs([draft]))

    def _change(self, row: JobRecord, wanted: Wish) -> bool:
        to = change_of(row, self._definition(row), wanted)
        return to is None or self._update(row, wanted.text, to, wanted.start_at)

    def _change_code(
        self, row: JobRecord, given: Mapping[str, object], enabled: object, policies: Mapping[str, object]
    ) -> bool:
        found = code_change_of(row, given, enabled, policies, self._rules())
        return found is None or self._update(row, *found, row.start_at)

    def _update(self, row: JobRecord, text: Text, to: Change, start_at: datetime | None) -> bool:
        draft, gap = draft_of(text, to.next_run_time, bool(row.enabled), start_at), self._gap(row, to.gap)
        admin, fence = self._store().for_admin(), fence_of(row, to)
        return admin.update_job(draft, row.version, to.moves, to.enabled, gap, fence) is not None

    def _gap(self, row: JobRecord, gap: Gap | None) -> GapRecord | None:
        return None if gap is None else gap_record(self._ids.run_ids(1)[0], row, gap)

    def _definition(self, row: JobRecord) -> Definition | None:
        try:
            return read_definition(text_of(row), self._rules())
        except FieldError:
            return None
