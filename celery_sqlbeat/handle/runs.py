"""The history of a namespace: every attempt and every gap."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator

from celery_sqlbeat.errors import NoSuchJob
from celery_sqlbeat.handle.records import Run, run_of
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

    def list(self, job: str | None = None, *, state: str | None = None, limit: int = 100) -> FoundRuns:
        """The newest attempts, of one job or of all, in one state or in any; those of a job by their slots."""
        found = map(run_of, self._rows(job, limit if state is None else PAGE))
        return [*itertools.islice((run for run in found if state in (None, run.state)), max(0, limit))]

    def get(self, run_id: str) -> Run | None:
        """The attempt of this id; None where there is none, or it was purged."""
        row = self._store().for_admin().run(run_id) if is_id(run_id) else None
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


def is_id(text: object) -> bool:
    """Whether this may be the id of a run; not every database takes another text for one."""
    try:
        return isinstance(text, str) and str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False
