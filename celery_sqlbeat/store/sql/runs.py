"""What a worker does to the database, and the release of runs: where every lease ends.

A release writes the rows of the jobs first, then those of the runs. A worker cannot claim.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter

from celery_sqlbeat import events
from celery_sqlbeat.model import EndedSlot, RefusedStart, StartedRun, StartRequest
from celery_sqlbeat.model.endings import storable
from celery_sqlbeat.model.lifecycle import CLAIMED, RUNNING, Ending, by_way_of
from celery_sqlbeat.model.one_offs import Asked
from celery_sqlbeat.store.records import Extended, Guard, Recorded, Release, RunNote
from celery_sqlbeat.store.sql.engine import Database, Part
from celery_sqlbeat.store.sql.faults import in_halves, write_runs
from celery_sqlbeat.store.sql.session import Row, Rows, Session


def release(database: Database, namespace: str, releases: Sequence[Release], right: Guard) -> set[str]:
    """End runs and free their jobs; return the run ids that were ended.

    The claims of the others are lost. Those of a beat are guarded and wait for nobody: rows that
    somebody keeps locked stay as they are.
    """
    if not releases:
        return set()
    ordered = sorted(releases, key=itemgetter(1))  # by run, as every statement locks
    is_guarded = right is not Guard.HELD
    guard = {
        "only_unstarted": int(right is Guard.UNSTARTED),
        "only_ended": int(right is Guard.EXPIRED),
        "only_replaceable": int(right is Guard.REPLACEABLE),
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
    database: Database, name: str, namespace: str, ordered: Sequence[Release], guard: dict[str, int]
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


def _before(guard: Mapping[str, int]) -> str:
    """Return the state of the runs before they end; one that has not started is claimed."""
    return CLAIMED if guard["only_unstarted"] else RUNNING


def _read_endings(ordered: Sequence[Release], session: Session) -> list[Row] | None:
    rows = [(end.run_id, end.claim_id, end.fence, end.ending.state) for end in ordered]
    return session.fetch("read_endings", rows) or None


def _end_of(end: Ending, before: str) -> Row:
    """Return the last columns of a row of close_runs."""
    state, *rest = storable(end)
    return (state, by_way_of(state, before), *rest)


def release_unstarted(database: Database, namespace: str, releases: Sequence[Release]) -> Recorded:
    """End claims of a beat, and read which of those that it missed this beat still holds."""
    done = write_runs(releases, partial(release, database, namespace, right=Guard.UNSTARTED), "release")
    return recorded(database, [r[:4] for r in releases], done)


def recorded(database: Database, claims: Sequence[Row], done: set[str]) -> Recorded:
    """Read which of the claims that a statement missed their beat still holds."""
    missed = [claim for claim in claims if claim[1] not in done]
    held = database.read("read_unmarked", sorted(missed, key=itemgetter(1))) if missed else []
    return Recorded(done, {row[0] for row in held})


def delete_free(session: Session, namespace: str, job_ids: Rows) -> set[str]:
    """Delete the jobs that are to be deleted and that no run holds; cancel what waits."""
    deleted = session.fetch("delete_requested", job_ids) if job_ids else []
    for job_id, *run_ids in deleted:
        for run_id in run_ids:
            session.fetch("cancel_waiting", namespace=namespace, job_id=job_id, run_id=run_id)
    return {row[0] for row in deleted}


_BY_RETRIES = itemgetter(StartRequest._fields.index("celery_retries"))


class Runs(Part):
    """The verbs of workers, and the end of every run."""

    def start(self, requests: Sequence[StartRequest], worker: str) -> dict[str, StartedRun | RefusedStart]:
        """Take over the leases of the runs that may begin; say why others may not."""
        # Of two requests for one run the one with more of Celery's own retries counts.
        by_run = {request.run_id: request for request in sorted(requests, key=_BY_RETRIES)}
        rows = [by_run[run_id] for run_id in sorted(by_run)]
        started = self._start(rows, worker)
        # Where the statement waited for a beat that marked the run as dispatched, it knew only the
        # state before: what seems stale is asked for once more.
        started |= self._start([row for row in rows if row.run_id not in started], worker)
        return {**started, **self._refuse([row for row in requests if row.run_id not in started])}

    def _start(self, rows: Sequence[StartRequest], worker: str) -> dict[str, StartedRun]:
        if not rows:
            return {}
        scope = {"namespace": self.namespace, "worker": worker}
        if self.database.does_at_once("start_at_once"):
            return _begun(self.database.fetch("start_at_once", rows, **scope), rows)

        def work(session: Session) -> dict[str, StartedRun]:
            won = {row[0]: row[1:] for row in session.fetch("start_jobs", rows, **scope)}
            candidates = [(*row, *won.get(row.run_id, (None, None))) for row in rows]
            return _begun(session.fetch("start_runs", candidates, **scope), rows)

        return self.database.write(work)

    def _refuse(self, requests: Sequence[StartRequest]) -> dict[str, RefusedStart]:
        """Say why runs may not begin, by run id; a run that is missing is not known."""
        if not requests:
            return {}
        rows = sorted({(request.run_id, request.claim_id, request.fence) for request in requests})

        def work(session: Session) -> list[Row]:
            session.fetch("refuse_starts", rows, namespace=self.namespace)
            return session.fetch("read_refused", rows, namespace=self.namespace)

        return {row[0]: RefusedStart._make(row) for row in self.database.write(work)}

    def extend(self, held: Sequence[tuple[StartedRun, float]]) -> Extended:
        """Extend leases by so many seconds from now; wait for no locked row."""
        ordered = sorted(held, key=lambda lease: lease[0].run_id)
        leased = [(r.job_id, r.run_id, r.claim_id, r.fence, seconds) for r, seconds in ordered if r.exclusive]
        overlapping = [(r.run_id, r.claim_id, r.fence, seconds) for r, seconds in ordered if not r.exclusive]
        missed, busy = self._extend("extend_leases", "read_busy_leases", leased, at=1)
        missed_held, busy_held = self._extend("extend_held", "read_busy_held", overlapping, at=0)
        busy |= busy_held
        missed |= missed_held
        kept = [(run.run_id,) for run, _ in ordered if run.run_id not in missed]
        rows = self.database.read("read_asked", kept) if kept else []
        return Extended(missed - busy, busy, {run_id: Asked(*asked) for run_id, *asked in rows})

    def _extend(self, extend: str, read_busy: str, rows: Sequence[Row], at: int) -> tuple[set[str], set[str]]:
        """Return the run ids missed, and those that are only locked; `at` is that of the run id."""
        if not rows:
            return set(), set()
        kept: set[str] = set()
        in_halves(
            rows,
            lambda part: kept.update(row[0] for row in self.database.fetch(extend, part)),
            lambda row, why: events.row_refused(action="extend", row=row[at], error=why),
        )
        missed = [row[:-1] for row in rows if row[at] not in kept]
        busy = {row[0] for row in self.database.read(read_busy, missed)} if missed else set()
        return {row[at] for row in missed}, busy

    def finish(self, releases: Sequence[Release], guard: Guard = Guard.HELD) -> Recorded:
        """End runs, or their attempts, and free their jobs."""
        if guard is Guard.HELD:
            return Recorded(release(self.database, self.namespace, releases, guard), set())
        if guard is Guard.UNSTARTED:
            return release_unstarted(self.database, self.namespace, releases)
        work = partial(release, self.database, self.namespace, right=guard)
        return Recorded(write_runs(releases, work, guard.value), set())

    def note_runs(self, notes: Sequence[RunNote]) -> Recorded:
        """Keep what others know of runs; one that is of another claim now is missing."""
        rows = sorted((n.run_id, n.claim_id, n.check_in) for n in notes if n.check_in is not None)
        ended = sorted({(n.run_id, n.claim_id) for n in notes if n.results_ended}, key=itemgetter(0))
        parts = (("note_check_ins", rows), ("end_results", ended))
        return Recorded({row[0] for block, part in parts if part for row in self.database.fetch(block, part)}, set())

    def unended_results(self, page_size: int, since_seconds: float) -> list[EndedSlot]:
        """Return slots that ended recently and whose earlier attempts may have no final result."""
        scope = {"namespace": self.namespace, "page_size": page_size, "since_seconds": since_seconds}
        slots = [EndedSlot(*row) for row in self.database.read("read_unended", **scope)]
        if not slots:
            return []
        earlier: dict[str, list[tuple[str, int]]] = {}
        for run_id, earlier_id, attempt in self.database.read("read_earlier", [(slot.run_id,) for slot in slots]):
            earlier.setdefault(run_id, []).append((earlier_id, attempt))
        return [slot._replace(earlier=tuple(earlier.get(slot.run_id, ()))) for slot in slots]


def _begun(answer: Sequence[Row], rows: Sequence[StartRequest]) -> dict[str, StartedRun]:
    asked = {row.run_id: row for row in rows}
    return {
        row[0]: StartedRun._make((*row[:-1], asked[row[0]].start_id, row[-1], asked[row[0]].celery_retries))
        for row in answer
    }
