"""Read the history of a namespace, and list, replay and purge its dead letters."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from operator import attrgetter
from typing import Any

from celery_sqlbeat.api.cancel import Canceller
from celery_sqlbeat.api.records import Run, run_of
from celery_sqlbeat.api.waiting import wait_for_end
from celery_sqlbeat.config.validation import NotAllowed, seconds, shown
from celery_sqlbeat.environment import Ids
from celery_sqlbeat.errors import FieldError, NoSuchJob, NoSuchRun, RowRefused, RunHasEnded
from celery_sqlbeat.model import NewRun, RunRecord
from celery_sqlbeat.model.lifecycle import CLAIMED, RUNNING, SCHEDULED, STATES
from celery_sqlbeat.model.one_offs import ONE_OFF
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.purges import DeadLetters
from celery_sqlbeat.store.records import JobQuery, RunQuery

RunList = list[Run]  # in the class itself `list` is a method

PAGE = 500  # rows that are read at a time
NEWEST = 10_000  # rows that are searched for those of a job that was deleted
_SCAN = 20_000  # rows that one statement searches for a state: far less than its time-out allows

Letter = str | uuid.UUID | Run
Letters = Letter | Iterable[Letter] | None
Progress = Callable[[int], None]
Skipped = Callable[[Run, str], None]

REPLAYED = "replayed"
BATCH = 500  # letters of one transaction
_SINGLE_LETTER = (str, uuid.UUID, Run)
_OPEN = (SCHEDULED, CLAIMED, RUNNING)
_NO_ATTEMPT = 2**31 - 1  # later than every attempt of a slot
_MOST_ATTEMPTS = 100  # of one slot that are read
_SHOWN = 3  # letters that an error names


class Runs:
    """`beat.runs`."""

    def __init__(self, store: Callable[[], Store], app: Any) -> None:
        """Take a function that gives the store when it is first needed."""
        self._store = store
        self._canceller = Canceller(app, store)

    def list(
        self, job: str | None = None, *, state: str | None = None, limit: int | None = 100, one_off: bool = False
    ) -> RunList:
        """List the newest attempts, of one job or all, in one state or any; those of a job by slot.

        Of a job that was deleted: those among the newest 10,000 of all. `one_off`: only one-offs.
        """
        most = how_many(limit)
        if state not in (None, *STATES):
            raise FieldError("state", shown(state), f"write one of {', '.join(sorted(STATES))}, or None for any")
        if job is not None and one_off:
            raise FieldError("one_off", one_off, f"a one-off has no job such as {shown(job)}: write one of them")
        if job is None and (state is not None or one_off):
            query = RunQuery(state=state, one_offs=one_off, page_size=PAGE if state is None else _SCAN)
            rows = all_runs(self._store(), query)
        else:
            rows = self._rows(job, PAGE if most is None or state is not None else most)
        return [*map(run_of, itertools.islice((row for row in rows if state in (None, row.state)), most))]

    def get(self, run_id: str | uuid.UUID) -> Run | None:
        """Return the attempt of this id; None where there is none, or it was purged."""
        row = find_run(self._store(), run_id)
        return None if row is None else run_of(row)

    def wait(self, run_id: str | uuid.UUID, timeout: float | timedelta) -> Run:
        """Wait until a run has ended, and return it; RunNotEnded after so many seconds."""
        return wait_for_end(self.get, run_id, timeout)

    def cancel(self, run_id: str | uuid.UUID, reason: str = "", *, by: str | None = None) -> Run:
        """Cancel a run, and return it; RunHasEnded where there is nothing to cancel any more.

        What has not begun has ended then. What runs is stopped by its worker, and can only end as
        cancelled. `by`: who asks, if that is not the user of this process.
        """
        row = find_run(self._store(), run_id)
        answer = None if row is None else self._canceller.cancel([row], reason, by).get(row.run_id)
        if row is None or answer is None:
            raise NoSuchRun(str(run_id))
        if not answer.is_done and not answer.is_asked:
            raise RunHasEnded(row.run_id, answer.state)
        return self.get(row.run_id) or run_of(row)

    def cancel_all(self, job: str, reason: str = "", *, by: str | None = None) -> RunList:
        """Cancel every run of a job that goes on or waits; return those that it has cancelled."""
        rows = self._canceller.open_runs(job)
        if rows is None:
            raise NoSuchJob(job, self._store().namespace)
        answers = self._canceller.cancel(rows, reason, by)
        done = [run_id for run_id, answer in answers.items() if answer.is_done or answer.is_asked]
        return [run_of(row) for row in self._store().runs(RunQuery(run_ids=done))] if done else []

    def _rows(self, job: str | None, wanted: int) -> Iterator[RunRecord]:
        admin, size = self._store(), max(1, min(PAGE, wanted))
        row = None if job is None else admin.jobs(JobQuery(names=[job])).get(job)
        if job is not None and row is None:
            return self._rows_of_deleted_job(job)
        return all_runs(admin, RunQuery(job_id=None if row is None else row.job_id, page_size=size))

    def _rows_of_deleted_job(self, job: str) -> Iterator[RunRecord]:
        """Search for a job whose id is gone, as no index has its name; the name may be mistyped."""
        runs = [run for run in itertools.islice(self._rows(None, PAGE), NEWEST) if run.job_name == job]
        if not runs:
            raise NoSuchJob(job, self._store().namespace)
        yield from runs


def run_pages(admin: Store, query: RunQuery) -> Iterator[Sequence[RunRecord]]:
    """Read what a query asks for, page by page."""
    while page := admin.runs(query):
        yield page
        if query.state is None and len(page) < query.page_size:
            return
        query = replace(query, after=page[-1])


def all_runs(admin: Store, query: RunQuery) -> Iterator[RunRecord]:
    """Read what a query asks for, to the end of the history."""
    return itertools.chain.from_iterable(run_pages(admin, query))


def find_run(store: Store, run_id: object) -> RunRecord | None:
    """Return the attempt of this id; a database may refuse what is no UUID, so it is not asked."""
    try:
        text = str(uuid.UUID(str(run_id)))
    except ValueError:
        return None
    rows = store.runs(RunQuery(run_ids=[text])) if text == str(run_id).lower() else []
    return rows[0] if rows else None


def how_many(limit: object) -> int | None:
    """Check the most that are wanted; None for all."""
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0):
        return limit
    raise FieldError("limit", shown(limit), "write a whole number from 0 on, or None for all")


class Dead:
    """`beat.dead`. Without letters named, `replay` and `purge` take all of them."""

    def __init__(self, store: Callable[[], Store]) -> None:
        """Take a function that gives the store when it is first needed."""
        self._store = store
        self._ids = Ids()

    def list(self, job: str | None = None, *, limit: int | None = None) -> RunList:
        """List the dead letters, oldest first; the reason of a replayed one is `replayed`."""
        return [*itertools.islice(map(run_of, self._letters(None, job, None)), how_many(limit))]

    def replay(
        self,
        letters: Letters = None,
        *,
        job: str | None = None,
        progress: Progress = lambda _: None,
        skipped: Skipped = lambda _, __: None,
    ) -> RunList:
        """Give dead letters another attempt; return the new attempts.

        Each gets a new run id, but for a one-off, which keeps its own.

        A letter is replayed once, and only while it is the last attempt of its slot and no attempt
        is open. One whose job was deleted is not replayed. `skipped` gets each letter that is not
        replayed, and the reason.
        """
        admin, replayed = self._store(), list[Run]()
        chosen = (letter for letter in self._letters(letters, job, None) if letter.reason != REPLAYED)
        for batch in _batches(chosen):
            new = self._ids.run_ids(len(batch))
            ids = [
                letter.run_id if letter.kind == ONE_OFF else run_id for run_id, letter in zip(new, batch, strict=True)
            ]
            done = admin.enqueue(
                [NewRun(run_id, letter.job_id, letter) for run_id, letter in zip(ids, batch, strict=True)]
            )
            replayed += map(run_of, sorted(admin.runs(RunQuery(run_ids=done)), key=attrgetter("run_id")))
            for run_id, letter in zip(ids, batch, strict=True):
                if run_id not in done:
                    skipped(run_of(letter), _why_skipped(admin, letter))
            progress(len(batch))
        return replayed

    def purge(
        self,
        letters: Letters = None,
        *,
        job: str | None = None,
        older_than: float | timedelta | None = None,
        progress: Progress = lambda _: None,
    ) -> int:
        """Delete dead letters for good, chosen by id, job or age; return how many.

        If the database refuses to delete some, the others are deleted, and RowRefused names these.
        """
        admin, purged, refused = self._store(), 0, dict[str, str]()
        for batch in _batches(self._letters(letters, job, _age(older_than))):
            result = admin.purge(DeadLetters([letter.run_id for letter in batch]))
            purged += result.rows
            refused |= result.refused
            progress(len(batch))
        if refused:
            raise RowRefused(_refusal(purged, refused))
        return purged

    def _letters(self, letters: Letters, job: str | None, older_than: timedelta | None) -> Iterator[RunRecord]:
        everyone = RunQuery(only_dead=True, page_size=BATCH)
        chosen = all_runs(self._store(), everyone) if letters is None else self._named(letters)
        end = None if older_than is None else self._store().pulse().now - older_than
        for letter in chosen:
            if job in (None, letter.job_name) and (end is None or (letter.finished_at or letter.created_at) < end):
                yield letter

    def _named(self, letters: Letter | Iterable[Letter]) -> Iterator[RunRecord]:
        """Read all of them before any is changed."""
        store, rows = self._store(), []
        for letter in [letters] if isinstance(letters, _SINGLE_LETTER) else letters:
            run_id = letter.id if isinstance(letter, Run) else letter
            row = find_run(store, run_id)
            if row is None or row.state != "dlq":
                raise NoSuchRun(str(run_id))
            rows.append(row)
        return iter(rows)


def _why_skipped(admin: Store, letter: RunRecord) -> str:
    """Tell why a dead letter was not replayed, as its rows are now."""
    rows = admin.runs(RunQuery(run_ids=[letter.run_id]))
    if not rows:
        return "it was purged"
    if rows[0].reason == REPLAYED:
        return "it was replayed before"
    after_all = letter._replace(attempt=_NO_ATTEMPT)
    for other in admin.runs(RunQuery(job_id=letter.job_id, after=after_all, page_size=_MOST_ATTEMPTS)):
        if (other.scheduled_for, other.kind) == (letter.scheduled_for, letter.kind):
            if other.state in _OPEN or other.due_at is not None:
                return f"attempt {other.attempt} of its slot is {other.state}"
            if other.attempt > letter.attempt:
                return f"attempt {other.attempt} of its slot came later: {other.state}"
    return "its job is gone"


def _refusal(purged: int, refused: Mapping[str, str]) -> str:
    shown = [f"{run_id} ({why})" for run_id, why in itertools.islice(refused.items(), _SHOWN)]
    rest = f" and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
    return (
        f"{purged} dead letters are gone, and the database refuses to delete {len(refused)}: {', '.join(shown)}{rest}; "
        "remove what refers to them, or the trigger, and purge again"
    )


def _age(value: Any) -> timedelta | None:
    kind = seconds(0)
    try:
        return None if value is None else timedelta(seconds=kind.read(value))
    except NotAllowed as refusal:
        raise FieldError("older_than", shown(value), f"write {refusal.allowed}") from None


def _batches(letters: Iterator[RunRecord]) -> Iterator[list[RunRecord]]:
    while batch := [*itertools.islice(letters, BATCH)]:
        yield batch
