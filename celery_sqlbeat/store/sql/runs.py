"""What a worker does to the database, and the release of runs: where every lease ends.

A release writes the rows of the jobs first, then those of the runs. A worker cannot claim.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from celery_sqlbeat import events
from celery_sqlbeat.model import RefusedStart, StartedRun, StartRequest, Unbegun
from celery_sqlbeat.model.lifecycle import CLAIMED, LONGEST_REASON, RUNNING, Ending, by_way_of
from celery_sqlbeat.store.protocols import Extended
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.faults import in_halves
from celery_sqlbeat.store.sql.session import Row, Rows, Session

_LONGEST_ERROR = 2000  # characters; it begins with its type and what happened, and may go on with data
_LONGEST_TRACEBACK = 16000  # the other way round: its last lines say where it was raised


class Release(NamedTuple):
    """A run, the right to write about it, and how it ends."""

    job_id: str
    run_id: str
    claim_id: str
    fence: int
    ending: Ending
    started_retry: int | None = None
    """Only where this retry of Celery's is the last that began; None: whichever did."""


def release(
    database: Database,
    namespace: str,
    releases: Sequence[Release],
    only_unstarted: bool = False,
    only_ended: bool = False,
    only_replaceable: bool = False,
    grace_seconds: float = 0.0,
) -> set[str]:
    """End runs and free their jobs; return the run ids that were ended.

    The claims of the others are lost. Those of a beat are guarded and wait for nobody: rows that
    somebody keeps locked stay as they are.
    """
    if not releases:
        return set()
    ordered = sorted(releases, key=itemgetter(1))  # by run, as every statement locks
    is_guarded = only_unstarted or only_ended or only_replaceable
    guard = {
        "only_unstarted": int(only_unstarted),
        "only_ended": int(only_ended),
        "only_replaceable": int(only_replaceable),
        "grace_seconds": grace_seconds,
    }
    name = "release_at_once" if is_guarded else "finish_at_once"
    if database.does_at_once(name):
        return _at_once(database, name, namespace, ordered, guard)
    before = _before(guard)
    everyone = {end.run_id for end in ordered}
    lock_rows = [(end.job_id, end.run_id) for end in ordered]
    job_rows = [
        (r.job_id, r.run_id, r.claim_id, r.fence, r.started_retry, r.ending.state, r.ending.retry_seconds)
        for r in ordered
    ]

    def work(session: Session) -> set[str]:
        mine = {row[0] for row in session.fetch("lock_claims", lock_rows)} if is_guarded else everyone
        if not mine:
            return set()
        released = session.fetch("release_jobs", [row for row in job_rows if row[1] in mine], **guard)
        free = {row[0] for row in released}
        run_rows = [
            (end.run_id, end.claim_id, end.fence, end.started_retry, end.job_id in free, *_end_of(end.ending, before))
            for end in ordered
            if end.run_id in mine
        ]
        ended = session.fetch("close_runs", run_rows, **guard)
        closed = {row[0] for row in ended}
        if is_guarded:
            # An overlapping run that has begun goes on by itself, but its job is free.
            closed |= {end.run_id for end in ordered if end.job_id in free}
        if any(tells for _, tells in (*released, *ended)):
            session.fetch("bump_changes", namespace=namespace)
        return closed

    def resolve_commit(session: Session) -> set[str] | None:
        return {row[0] for row in _read_endings(ordered, session) or ()} or None

    return database.write(work, resolve_commit)


def _at_once(
    database: Database, name: str, namespace: str, ordered: Sequence[Release], guard: dict[str, float]
) -> set[str]:
    """End runs by one statement."""
    before = _before(guard)
    rows = [
        (end.job_id, end.run_id, end.claim_id, end.fence, end.started_retry, *_end_of(end.ending, before))
        for end in ordered
    ]
    answer = database.fetch(name, rows, partial(_read_endings, ordered), namespace=namespace, **guard)
    ids = {row[0] for row in answer}
    return {end.run_id for end in ordered if end.run_id in ids or end.job_id in ids}


def _before(guard: Mapping[str, float]) -> str:
    """Return the state of the runs before they end; one that has not started is claimed."""
    return CLAIMED if guard["only_unstarted"] else RUNNING


def _read_endings(ordered: Sequence[Release], session: Session) -> list[Row] | None:
    rows = [(end.run_id, end.claim_id, end.fence, end.ending.state) for end in ordered]
    return session.fetch("read_endings", rows) or None


def _end_of(end: Ending, before: str) -> Row:
    """Return the last columns of a row of close_runs."""
    return (
        end.state,
        by_way_of(end.state, before),
        _end(end.reason, LONGEST_REASON),
        end.retry_seconds,
        end.failures,
        end.lost_leases,
        _beginning(end.error, _LONGEST_ERROR),
        _end(end.traceback, _LONGEST_TRACEBACK),
    )


def delete_free(session: Session, namespace: str, job_ids: Rows) -> set[str]:
    """Delete the jobs that are to be deleted and that no run holds; cancel what waits."""
    deleted = session.fetch("delete_requested", job_ids) if job_ids else []
    for job_id, *run_ids in deleted:
        for run_id in run_ids:
            session.fetch("cancel_waiting", namespace=namespace, job_id=job_id, run_id=run_id)
    return {row[0] for row in deleted}


def _beginning(text: str | None, longest: int) -> str | None:
    clean = _storable(text)
    return clean if clean is None or len(clean) <= longest else clean[: longest - 4] + " ..."


def _end(text: str | None, longest: int) -> str | None:
    clean = _storable(text)
    return clean if clean is None or len(clean) <= longest else "... " + clean[4 - longest :]


def _storable(text: str | None) -> str | None:
    """Return a text that every database takes; an error may hold bytes that are no text."""
    return None if text is None else text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


_BY_RETRIES = itemgetter(StartRequest._fields.index("celery_retries"))
_RETRIES = itemgetter(Unbegun._fields.index("celery_retries"))


class SqlWorkerStore:
    """The WorkerStore of one namespace in a SQL database."""

    def __init__(self, database: Database, namespace: str, worker: str) -> None:
        self._database = database
        self._namespace = namespace
        self._worker = worker

    def start(self, requests: Iterable[StartRequest]) -> dict[str, StartedRun]:
        """Take over the leases of the runs that may begin; return the started runs by run id."""
        # Of two requests for one run the one with more of Celery's own retries counts.
        by_run = {request.run_id: request for request in sorted(requests, key=_BY_RETRIES)}
        rows = [by_run[run_id] for run_id in sorted(by_run)]
        started = self._start(rows)
        # Where the statement waited for a beat that marked the run as dispatched, it knew only the
        # state before: what seems stale is asked for once more.
        return started | self._start([row for row in rows if row.run_id not in started])

    def _start(self, rows: Sequence[StartRequest]) -> dict[str, StartedRun]:
        if not rows:
            return {}
        scope = {"namespace": self._namespace, "worker": self._worker}
        if self._database.does_at_once("start_at_once"):
            return _begun(self._database.fetch("start_at_once", rows, **scope), rows)

        def work(session: Session) -> dict[str, StartedRun]:
            won = {row[0]: row[1:] for row in session.fetch("start_jobs", rows, **scope)}
            candidates = [(*row, *won.get(row.run_id, (None, None))) for row in rows]
            return _begun(session.fetch("start_runs", candidates, **scope), rows)

        return self._database.write(work)

    def refuse(self, requests: Iterable[StartRequest]) -> dict[str, RefusedStart]:
        """Say why runs may not begin, by run id; a run that is missing is not known."""
        rows = sorted({(request.run_id, request.claim_id, request.fence) for request in requests})

        def work(session: Session) -> list[Row]:
            session.fetch("refuse_starts", rows, namespace=self._namespace)
            return session.fetch("read_refused", rows, namespace=self._namespace)

        return {row[0]: RefusedStart._make(row) for row in self._database.write(work)}

    def extend(self, held: Sequence[tuple[StartedRun, float]]) -> Extended:
        """Extend leases by so many seconds from now; wait for no locked row."""
        ordered = sorted(held, key=lambda lease: lease[0].run_id)
        leased = [(r.job_id, r.run_id, r.claim_id, r.fence, seconds) for r, seconds in ordered if r.exclusive]
        overlapping = [(r.run_id, r.claim_id, r.fence, seconds) for r, seconds in ordered if not r.exclusive]
        missed, busy = self._extend("extend_leases", "read_busy_leases", leased, at=1)
        missed_held, busy_held = self._extend("extend_held", "read_busy_held", overlapping, at=0)
        busy |= busy_held
        return Extended((missed | missed_held) - busy, busy)

    def _extend(self, extend: str, read_busy: str, rows: Sequence[Row], at: int) -> tuple[set[str], set[str]]:
        """Return the run ids missed, and those that are only locked; `at` is that of the run id."""
        if not rows:
            return set(), set()
        kept: set[str] = set()
        in_halves(
            rows,
            lambda part: kept.update(row[0] for row in self._database.fetch(extend, part)),
            lambda row, why: events.row_refused(action="extend", row=row[at], error=why),
        )
        missed = [row[:-1] for row in rows if row[at] not in kept]
        busy = {row[0] for row in self._database.read(read_busy, missed)} if missed else set()
        return {row[at] for row in missed}, busy

    def postpone(self, unbegun: Iterable[Unbegun]) -> set[str]:
        """Postpone the deadlines of runs whose messages wait here; return the ids of these runs."""
        rows = sorted({run.run_id: run for run in sorted(unbegun, key=_RETRIES)}.values())
        if not rows:
            return set()
        return {row[0] for row in self._database.fetch("postpone_starts", rows, namespace=self._namespace)}

    def finish(self, outcomes: Iterable[tuple[StartedRun, Ending]]) -> set[str]:
        """Write how runs ended; return the run ids whose lease was lost: theirs is not written."""
        releases = [
            Release(run.job_id, run.run_id, run.claim_id, run.fence, ending, run.celery_retries)
            for run, ending in outcomes
        ]
        return {end.run_id for end in releases} - release(self._database, self._namespace, releases)


def _begun(answer: Sequence[Row], rows: Sequence[StartRequest]) -> dict[str, StartedRun]:
    asked = {row.run_id: row for row in rows}
    return {
        row[0]: StartedRun._make((*row[:-1], asked[row[0]].start_id, row[-1], asked[row[0]].celery_retries))
        for row in answer
    }
