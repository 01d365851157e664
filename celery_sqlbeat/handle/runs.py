"""The history of a namespace: every attempt and every gap."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator

from celery_sqlbeat.checks import shown
from celery_sqlbeat.errors import FieldError, NoSuchJob
from celery_sqlbeat.handle.records import Run, run_of
from celery_sqlbeat.lifecycle import STATES
from celery_sqlbeat.model import RunRecord
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.protocol import LAST_ID

FoundRuns = list[Run]  # in the class itself `list` is a method

PAGE = 500  # rows that are read at a time


class Runs:
    """`beat.runs`."""

    def __init__(self, store: Callable[[], Store]) -> None:
        """The store is asked for when it is first needed."""
        self._store = store

    def list(self, job: str | None = None, *, state: str | None = None, limit: int | None = 100) -> FoundRuns:
        """The newest attempts, of one job or of all, in one state or in any; those of a job by their slots."""
        most = how_many(limit)
        if state not in (None, *STATES):
            raise FieldError("state", shown(state), f"write one of {', '.join(sorted(STATES))}, or None for any")
        found = map(run_of, self._rows(job, PAGE if most is None or state is not None else most))
        return [*itertools.islice((run for run in found if state in (None, run.state)), most)]

    def get(self, run_id: str | uuid.UUID) -> Run | None:
        """The attempt of this id; None where there is none, or it was purged."""
        row = find_run(self._store(), run_id)
        return None if row is None else run_of(row)

    def _rows(self, job: str | None, wanted: int) -> Iterator[RunRecord]:
        admin, size = self._store().for_admin(), max(1, min(PAGE, wanted))
        if job is None:
            page = admin.runs(size, LAST_ID)
            while page:
                yield from page
                page = admin.runs(size, page[-1].run_id) if len(page) == size else []
            return
        row = admin.jobs([job]).get(job)
        if row is None:
            raise NoSuchJob(job, self._store().namespace)
        page = admin.job_runs(row.job_id, size)
        while page:
            yield from page
            page = admin.job_runs(row.job_id, size, page[-1]) if len(page) == size else []


def find_run(store: Store, run_id: object) -> RunRecord | None:
    """The attempt of this id; what is no id is not asked for, as not every database takes another text for one."""
    try:
        text = str(uuid.UUID(str(run_id)))
    except ValueError:
        return None
    return store.for_admin().run(text) if text == str(run_id).lower() else None


def how_many(limit: object) -> int | None:
    """The most that are wanted; None for all."""
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0):
        return limit
    raise FieldError("limit", shown(limit), "write a whole number from 0 on, or None for all")
