"""A lease manager on SQLite in memory; the test sets its clocks and loses its answers."""

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.errors import DatabaseBusy, DatabaseUnavailable, DatabaseUncertain, StoreError
from celery_sqlbeat.model import Claim, RefusedStart, StartedRun, StartRequest, Unbegun
from celery_sqlbeat.model.lifecycle import Ending, after_success
from celery_sqlbeat.model.locks import HeldLock, LockRecord
from celery_sqlbeat.model.one_offs import Asked
from celery_sqlbeat.store.records import Extended, Recorded, Release
from celery_sqlbeat.store.sql.dialects.sqlite import Sqlite
from celery_sqlbeat.store.sql.dialects.sqlite_values import text_of
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.store import SqlStore
from celery_sqlbeat.worker.lease import RunLease, StartAnswer, Started
from celery_sqlbeat.worker.lease.batching import Timing
from celery_sqlbeat.worker.lease.manager import LeaseManager
from celery_sqlbeat.worker.lease.starts import StartQuestion
from tests.support.world import NOON, World

T = TypeVar("T")
AWAY = DatabaseUnavailable("away")
BUSY = DatabaseBusy("busy")
REFUSED = StoreError("refused")
UNCERTAIN = DatabaseUncertain("unknown")


class Line:
    """The way to the store: counts what goes over it, and fails as it is told."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self.sent: Counter[str] = Counter()
        self.rows: list[tuple[str, int]] = []
        self.is_unavailable = False
        self.lose_reply_to: str | None = None
        self.bad: dict[str, StoreError] = {}
        """What a statement with this run id leads to."""
        self.bad_outcomes: dict[str, StoreError] = {}
        """The same, where the statement is to end the run."""
        self.errors: dict[str, StoreError] = {}
        """What every statement of this kind leads to."""
        self.locked: set[str] = set()
        """Runs whose rows somebody keeps locked; heartbeats pass them by."""
        self.asked: dict[str, Asked] = {}
        """Runs that somebody has cancelled, as heartbeats bring it."""
        self.during: Callable[[str], None] = lambda kind: None
        self.after: Callable[[str], None] = lambda kind: None

    def start(self, requests: Sequence[StartRequest], worker: str) -> dict[str, StartedRun | RefusedStart]:
        self._before("start", [one.run_id for one in requests])
        return self._after("start", self._store.start(requests, worker))

    def extend(self, held: Sequence[tuple[StartedRun, float]]) -> Extended:
        self._before("extend", [run.run_id for run, _ in held])
        lost, _, _ = self._store.extend([one for one in held if one[0].run_id not in self.locked])
        run_ids = {run.run_id for run, _ in held}
        asked = {run_id: asked for run_id, asked in self.asked.items() if run_id in run_ids - lost - self.locked}
        return self._after("extend", Extended(lost, self.locked & run_ids, asked))

    def postpone(self, unbegun: Sequence[Unbegun]) -> set[str]:
        self._before("postpone", [one.run_id for one in unbegun])
        return self._after("postpone", self._store.postpone(unbegun))

    def finish(self, releases: Sequence[Release]) -> Recorded:
        self._before("finish", [end.run_id for end in releases])
        return self._after("finish", self._store.finish(releases))

    def locks(self, after_key: str, page_size: int) -> list[LockRecord]:
        self._before("locks", [after_key])
        return self._store.locks(after_key, page_size)

    def take_lock(self, key: str, token: str, holder: str, lease_seconds: float) -> LockRecord | None:
        self._before("take_lock", [token])
        return self._store.take_lock(key, token, holder, lease_seconds)

    def extend_locks(self, held: Sequence[HeldLock]) -> set[str]:
        self._before("extend_locks", [lock.token for lock in held])
        return self._store.extend_locks(held)

    def release_locks(self, held: Sequence[HeldLock]) -> set[str]:
        self._before("release_locks", [lock.token for lock in held])
        return self._store.release_locks(held)

    def _before(self, kind: str, run_ids: Sequence[str]) -> None:
        assert run_ids and len(set(run_ids)) == len(run_ids), "a batch has each run once"
        self.sent[kind] += 1
        self.rows.append((kind, len(run_ids)))
        if self.is_unavailable:
            raise AWAY
        for run_id in run_ids:
            if run_id in self.bad:
                raise self.bad[run_id]
            if kind == "finish" and run_id in self.bad_outcomes:
                raise self.bad_outcomes[run_id]
        if kind in self.errors:
            raise self.errors[kind]
        self.during(kind)

    def _after(self, kind: str, answer: T) -> T:
        self.after(kind)
        if self.lose_reply_to == kind:
            self.lose_reply_to = None
            raise AWAY
        return answer


AT_ONCE = Timing(start_spacing=0.0, ahead_spacing=0.0, outcome_spacing=0.0, late_ack_spacing=0.0)
"""Each statement goes out as soon as there is a row for it."""


class Rig:
    """A world, a lease manager in it, and short words for what happens to them."""

    def __init__(self, timing: Timing | None = None) -> None:
        self.monotonic = 1000.0
        now = [NOON]
        store = SqlStore(Database(Sqlite(database_url("sqlite:///:memory:"), clock=lambda: now[0])), "test")
        store.migrate()
        weakref.finalize(self, store.close)  # from 3.13 on, Python warns of connections that nobody closed
        self._database = store.database
        self.world = World(store, self._sql, lambda instant: now.__setitem__(0, instant))
        self.line = Line(store)
        self.woken: Counter[str] = Counter()
        line: Any = self.line
        self.lease_manager = LeaseManager(
            line,
            "worker-1",
            timing or AT_ONCE,
            clock=lambda: self.monotonic,
            wake=lambda step: self.woken.update([step]),
        )
        self.answers: dict[str, list[StartAnswer]] = {}
        self.questions: dict[StartRequest, StartQuestion] = {}
        self.stopped: list[str] = []
        self.written: dict[str, list[bool]] = {}

    def _sql(self, text: str, values: Sequence[Any]) -> list[Mapping[str, Any]]:
        def work(session: Any) -> list[Mapping[str, Any]]:
            plain = [text_of(value) if isinstance(value, datetime) else value for value in values]
            cursor = session._connection.execute(text, plain)
            names = [column[0].lower() for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

        return self._database.write(work)

    def later(self, seconds: float) -> None:
        """Both clocks run on; nothing happens meanwhile."""
        self.monotonic += seconds
        self.world.later(seconds)

    def run_for(self, seconds: float) -> None:
        """Both clocks run on, and the lease manager does what it has to."""
        end = self.monotonic + seconds
        for _ in range(100_000):
            wait = self.lease_manager.turn()
            if wait > 0:
                step = min(wait, end - self.monotonic)
                if step <= 0:
                    return
                self.later(step + 1e-6)
        raise AssertionError("the lease manager is in a busy loop")

    def settle(self) -> None:
        """Let the manager do everything that it has to do now."""
        for _ in range(1000):
            if self.lease_manager.turn() > 0:
                return
        raise AssertionError("the lease manager is in a busy loop")

    def claims(self, count: int, **columns: Any) -> list[Claim]:
        """So many published messages, each of a job of its own."""
        for _ in range(count):
            self.world.add(**columns)
        claims = self.world.claim().claims
        self.world.publish(*claims)
        return claims

    def claim(self, **columns: Any) -> Claim:
        """One published message."""
        (claim,) = self.claims(1, **columns)
        return claim

    def ask(self, claim: Claim, celery_retries: int = 0, ahead: bool = False) -> StartRequest:
        """Ask to begin the message of this claim."""
        request = self.world.request(claim, celery_retries)
        heard = self.answers.setdefault(request.start_id, [])
        question = self.questions[request] = StartQuestion(request, heard.append, ahead, claim.retry, claim.pool)
        self.lease_manager.ask(question)
        return request

    def withdraw(self, request: StartRequest) -> None:
        """Withdraw the question of this request."""
        self.lease_manager.withdraw(self.questions[request])

    def answer(self, request: StartRequest) -> StartAnswer | None:
        """Return what it heard; at most one answer."""
        heard = self.answers[request.start_id]
        assert len(heard) <= 1
        return heard[0] if heard else None

    def run_lease(self, request: StartRequest) -> RunLease:
        """Return what it holds now."""
        answer = self.answer(request)
        assert isinstance(answer, Started), answer
        return answer.run_lease

    def begin(self, claim: Claim | None = None, **columns: Any) -> RunLease:
        """Return a run whose body has begun."""
        claim = claim or self.claim(**columns)
        request = self.ask(claim)
        self.settle()
        run_lease = self.run_lease(request)
        self.take(run_lease)
        return run_lease

    def begin_again(self, claim: Claim, celery_retries: int) -> RunLease:
        """Celery's own retry of a run begins."""
        request = self.ask(claim, celery_retries)
        self.settle()
        run_lease = self.run_lease(request)
        self.take(run_lease)
        return run_lease

    def take(self, run_lease: RunLease) -> None:
        """Its body begins."""
        assert run_lease.take()
        run_lease.on_stop(lambda: self.stopped.append(run_lease.run.run_id))

    def finish(self, run_lease: RunLease, ending: Ending | None = None) -> None:
        """Its task ended."""
        heard = self.written.setdefault(run_lease.run.run_id, [])
        self.lease_manager.finish(run_lease, ending or after_success(), heard.append)

    def is_lost(self, run_lease: RunLease) -> bool:
        """Whether its task must stop, by now."""
        return run_lease.lost

    def is_idle(self) -> bool:
        """Whether the lease manager has nothing to do any more, by now."""
        return self.lease_manager.is_idle

    def state(self, run: Claim | StartedRun) -> str:
        """Return the state of a run in the database."""
        (row,) = self.world.sql("SELECT State FROM JobRuns WHERE RunId = ?", run.run_id)
        state: str = row["state"]
        return state

    def holder(self, run: Claim | StartedRun) -> str | None:
        """Who holds the job."""
        held: str | None = self.world.job(run.job_name)["lockedby"]
        return held
