"""The history of a namespace: every attempt and every gap."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence

from celery_sqlbeat.checks import shown
from celery_sqlbeat.errors import FieldError, NoSuchJob
from celery_sqlbeat.handle.records import Run, run_of
from celery_sqlbeat.lifecycle import STATES
from celery_sqlbeat.model import RunRecord
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.protocol import LAST_ID

FoundRuns = list[Run]  # in the class itself `list` is a method

PAGE = 500  # rows that are read at a time
NEWEST = 10_000  # rows that are looked through for those of a job that is gone
_SCAN = 20_000  # rows among which the database looks for a state at a time: far less than the time of a statement


class Runs:
    """`beat.runs`."""

    def __init__(self, store: Callable[[], Store]) -> None:
        """The store is asked for when it is first needed."""
        self._store = store

    def list(self, job: str | None = None, *, state: str | None = None, limit: int | None = 100) -> FoundRuns:
        """The newest attempts, of one job or of all, in one state or in any; those of a job by their slots.

        Of a job that is gone: those among the newest 10,000 of all.
        """
        most = how_many(limit)
        if state not in (None, *STATES):
            raise FieldError("state", shown(state), f"write one of {', '.join(sorted(STATES))}, or None for any")
        if job is None and state is not None:
            rows = self._rows_in(state)
        else:
            rows = self._rows(job, PAGE if most is None or state is not None else most)
        return [*map(run_of, itertools.islice((row for row in rows if state in (None, row.state)), most))]

    def get(self, run_id: str | uuid.UUID) -> Run | None:
        """The attempt of this id; None where there is none, or it was purged."""
        row = find_run(self._store(), run_id)
        return None if row is None else run_of(row)

    def _rows_in(self, state: str) -> Iterator[RunRecord]:
        admin, before = self._store().for_admin(), LAST_ID
        while found := admin.runs_in(state, _SCAN, before):
            yield from found
            before = found[-1].run_id

    def _rows(self, job: str | None, wanted: int) -> Iterator[RunRecord]:
        admin, size = self._store().for_admin(), max(1, min(PAGE, wanted))
        row = None if job is None else admin.jobs([job]).get(job)
        if job is None:
            yield from _pages(size, lambda last: admin.runs(size, LAST_ID if last is None else last.run_id))
        elif row is None:
            yield from self._rows_of_the_gone(job)
        else:
            yield from _pages(size, lambda last: admin.job_runs(row.job_id, size, last))

    def _rows_of_the_gone(self, job: str) -> Iterator[RunRecord]:
        """Its id is gone, and no index knows its name; or the name is mistyped."""
        found = [run for run in itertools.islice(self._rows(None, PAGE), NEWEST) if run.job_name == job]
        if not found:
            raise NoSuchJob(job, self._store().namespace)
        yield from found


def _pages(size: int, page_after: Callable[[RunRecord | None], Sequence[RunRecord]]) -> Iterator[RunRecord]:
    last, is_full = None, True
    while is_full and (page := page_after(last)):
        yield from page
        last, is_full = page[-1], len(page) == size


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
