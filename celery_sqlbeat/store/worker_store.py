"""What a worker does to the database: start, extend, finish. It cannot claim."""

import logging
from collections.abc import Iterable, Sequence
from operator import itemgetter

from celery_sqlbeat.lifecycle import Ending
from celery_sqlbeat.model import RefusedStart, StartedRun, StartRequest, Unbegun
from celery_sqlbeat.store.database import Database
from celery_sqlbeat.store.halving import in_halves
from celery_sqlbeat.store.protocol import Extended
from celery_sqlbeat.store.run_store import Release, releasing
from celery_sqlbeat.store.session import Row, Session
from celery_sqlbeat.store.steps import Steps, run

logger = logging.getLogger(__name__)

_BY_RETRIES = itemgetter(StartRequest._fields.index("celery_retries"))
_RETRIES = itemgetter(Unbegun._fields.index("celery_retries"))


class SqlWorkerStore:
    """The WorkerStore of one namespace in a SQL database."""

    def __init__(self, database: Database, namespace: str, worker: str) -> None:
        self._database = database
        self._namespace = namespace
        self._worker = worker

    def start(self, requests: Iterable[StartRequest]) -> dict[str, StartedRun]:
        return run(self.starting(requests))

    def starting(self, requests: Iterable[StartRequest]) -> Steps[dict[str, StartedRun]]:
        # Of two requests for one run the one with more of Celery's own retries counts.
        by_run = {one.run_id: one for one in sorted(requests, key=_BY_RETRIES)}
        rows = [by_run[run_id] for run_id in sorted(by_run)]
        started = yield from self._start(rows)
        # Where the statement waited for a job whose beat was just marking the run dispatched, it knew only the state
        # before: what looks stale is looked at once more.
        return started | (yield from self._start([row for row in rows if row.run_id not in started]))

    def _start(self, rows: Sequence[StartRequest]) -> Steps[dict[str, StartedRun]]:
        if not rows:
            return {}
        scope = {"namespace": self._namespace, "worker": self._worker}
        if self._database.does_at_once("start_at_once"):
            return _begun((yield from self._database.asking("start_at_once", rows, **scope)), rows)

        def work(session: Session) -> dict[str, StartedRun]:
            won = {row[0]: row[1:] for row in session.fetch("start_jobs", rows, **scope)}
            candidates = [(*row, *won.get(row.run_id, (None, None))) for row in rows]
            return _begun(session.fetch("start_runs", candidates, **scope), rows)

        yield None
        return self._database.write(work)

    def refusing(self, requests: Iterable[StartRequest]) -> Steps[dict[str, RefusedStart]]:
        rows = sorted({(one.run_id, one.claim_id, one.fence) for one in requests})

        def work(session: Session) -> list[Row]:
            session.fetch("refuse_starts", rows, namespace=self._namespace)
            return session.fetch("read_refused", rows, namespace=self._namespace)

        yield None
        return {row[0]: RefusedStart._make(row) for row in self._database.write(work)}

    def extend(self, held: Sequence[tuple[StartedRun, float]]) -> Extended:
        ordered = sorted(held, key=lambda one: one[0].run_id)
        leased = [(r.job_id, r.run_id, r.claim_id, r.fence, seconds) for r, seconds in ordered if r.exclusive]
        overlapping = [(r.run_id, r.claim_id, r.fence, seconds) for r, seconds in ordered if not r.exclusive]
        missed, busy = self._extend("extend_leases", "read_busy_leases", leased, at=1)
        missed_held, busy_held = self._extend("extend_held", "read_busy_held", overlapping, at=0)
        busy |= busy_held
        return Extended((missed | missed_held) - busy, busy)

    def _extend(self, extend: str, read_busy: str, rows: Sequence[Row], at: int) -> tuple[set[str], set[str]]:
        """The run ids missed, and those of them that are not lost; `at` is where a row has its run id."""
        if not rows:
            return set(), set()
        kept: set[str] = set()
        in_halves(
            rows,
            lambda part: kept.update(row[0] for row in self._database.fetch(extend, part)),
            lambda row, why: logger.error("run %s was not extended: the database refuses it: %s", row[at], why),
        )
        missed = [row[:-1] for row in rows if row[at] not in kept]
        busy = {row[0] for row in self._database.read(read_busy, missed)} if missed else set()
        return {row[at] for row in missed}, busy

    def postpone(self, unbegun: Iterable[Unbegun]) -> set[str]:
        rows = sorted({one.run_id: one for one in sorted(unbegun, key=_RETRIES)}.values())
        if not rows:
            return set()
        return {row[0] for row in self._database.fetch("postpone_starts", rows, namespace=self._namespace)}

    def finish(self, outcomes: Iterable[tuple[StartedRun, Ending]]) -> set[str]:
        return run(self.finishing(outcomes))

    def finishing(self, outcomes: Iterable[tuple[StartedRun, Ending]]) -> Steps[set[str]]:
        releases = [Release(run.job_id, run.run_id, run.claim_id, run.fence, ending) for run, ending in outcomes]
        if not releases:
            return set()
        return {one.run_id for one in releases} - (yield from releasing(self._database, self._namespace, releases))


def _begun(found: Sequence[Row], rows: Sequence[StartRequest]) -> dict[str, StartedRun]:
    asked = {row.run_id: row.start_id for row in rows}
    return {row[0]: StartedRun._make((*row[:-1], asked[row[0]], row[-1])) for row in found}
