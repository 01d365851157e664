"""Writes how runs ended: in batches, kept while the database is away, until written or known to be lost."""

import logging
from collections import deque
from collections.abc import Callable

from celery_sqlbeat.errors import DatabaseAway, DatabaseBusy, DatabaseUncertain, StoreError
from celery_sqlbeat.lifecycle import Ending
from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.store.protocol import Extended, WorkerStore
from celery_sqlbeat.store.steps import Steps
from celery_sqlbeat.worker.holding import Holding, Stop
from celery_sqlbeat.worker.holdings import Holdings
from celery_sqlbeat.worker.line import Line
from celery_sqlbeat.worker.waiting import Waiting, next_batches

logger = logging.getLogger(__name__)
Then = Callable[[bool], None]

_WHILE_LOCKED = 0.25  # seconds until a lease is kept whose row somebody has locked: to ask again costs no waiting
_WHILE_BEATING = 0.02  # seconds; about as long as the heartbeat's statement


class Outcome(Waiting):
    """What is to be written about one run."""

    __slots__ = ("ending", "holding", "keep_seconds", "refused_at", "then")

    def __init__(
        self, most: int, holding: Holding, ending: Ending | None, keep_seconds: float, then: Then | None
    ) -> None:
        super().__init__(most)
        self.holding = holding
        self.ending = ending
        """None: Celery's own retry follows, and the lease goes on for `keep_seconds` and its usual length."""
        self.keep_seconds = keep_seconds
        self.then = [then] if then is not None else []
        self.refused_at: float | None = None
        """When the database first gave an error for it alone that is neither its absence nor a lock."""


class Outcomes:
    """The outcomes of one process. `add` comes from any thread, `steps` from one at a time."""

    def __init__(self, store: WorkerStore, holdings: Holdings) -> None:
        self._store = store
        self._holdings = holdings
        self._new: deque[Outcome] = deque()
        self._waiting: dict[str, Outcome] = {}
        timing = holdings.timing
        self._line = Line(holdings.clock, holdings.random, timing.gather_outcomes, timing.enough_outcomes)

    def close(self) -> None:
        """Wait for no more."""
        self._line.close()

    def add(self, holding: Holding, ending: Ending | None, keep_seconds: float, then: Then | None) -> None:
        """Write this with the next batch; `then` hears whether it was written."""
        self._new.append(Outcome(self._holdings.timing.batch_size, holding, ending, keep_seconds, then))

    @property
    def is_idle(self) -> bool:
        """Whether everything is written, or known to be lost."""
        return not self._new and not self._waiting

    def steps(self) -> Steps[float]:
        """Write what has gathered; returns the seconds until the next time."""
        now = self._holdings.clock()
        self._take_new(now)
        if self._waiting and self._line.is_open(now):
            gathers = self._line.gathers(now)
            if gathers:
                return gathers
            self._drop_superseded()
            endings = [one for one in self._waiting.values() if one.ending is not None]
            for batch in next_batches(endings, now, _run_of):
                yield from self._write(batch, self._finish)
            kept = [one for one in self._waiting.values() if one.ending is None and not self._is_beating(one, now)]
            for batch in next_batches(kept, now, _run_of):
                yield from self._write(batch, self._keep)
        return self._seconds_left()

    def _take_new(self, now: float) -> None:
        if self._new:
            self._line.came(len(self._new), now)
        while self._new:
            one = self._new[0]  # it leaves once it stands elsewhere: whoever asks meanwhile must not find us idle
            if one.then:
                self._line.hurry(self._holdings.timing.gather_late)
            earlier = self._waiting.get(one.holding.run.start_id)
            if earlier is not None:  # the first word about a run counts; Celery reports a hard time limit twice
                earlier.then += one.then
            elif one.holding.written is not None or one.holding.stop is Stop.LOST:
                self._done(one, written=bool(one.holding.written))
            else:
                self._waiting[one.holding.run.start_id] = one
            self._new.popleft()

    def _drop_superseded(self) -> None:
        """Celery's own retry runs here already: the run is in its hands, and the try before writes nothing."""
        for one in list(self._waiting.values()):
            if not self._holdings.is_latest(one.holding):
                self._done(one, written=one.ending is None)

    def _is_beating(self, one: Outcome, now: float) -> bool:
        """Whether a heartbeat is under way that could follow what keeps the lease for longer, and shorten it again."""
        if one.holding.beating:
            one.not_before = now + _WHILE_BEATING
        return one.holding.beating

    def _write(self, batch: list[Outcome], write: Callable[[list[Outcome]], Steps[Extended]]) -> Steps[None]:
        try:
            lost, busy = yield from write(batch)
        except StoreError as error:
            self._line.failed(batch, error)
            if len(batch) == 1 and _is_refusal(error):
                self._refused(batch[0], error)
            return
        self._line.succeeded()
        for one in batch:
            if _run_of(one) in busy:
                one.not_before = self._holdings.clock() + _WHILE_LOCKED
            else:
                self._done(one, written=_run_of(one) not in lost)

    def _refused(self, one: Outcome, error: StoreError) -> None:
        """Try on: a fail-over says strange things, and rights are mended. But no run holds its job for ever.

        Its lease is extended for one more of its length, and it is given up when that one has ended as well.
        """
        now, lease = self._holdings.clock(), one.holding.run.lease_seconds
        if one.refused_at is None:
            one.refused_at = now
        if now >= one.refused_at + 2 * lease:
            logger.error("the outcome of run %s was not written while its lease lasted: %s", _run_of(one), error)
            self._done(one, written=False)
            return
        if now >= one.refused_at + lease:
            with self._holdings.guard:
                one.holding.is_extended = False
        logger.error("the outcome of run %s is not written, it is tried again: %s", _run_of(one), error)

    def _finish(self, batch: list[Outcome]) -> Steps[Extended]:
        rows: list[tuple[StartedRun, Ending]] = [(one.holding.run, one.ending) for one in batch if one.ending]
        return Extended((yield from self._store.finishing(rows)), set())

    def _keep(self, batch: list[Outcome]) -> Steps[Extended]:
        yield None
        return self._store.extend(
            [(one.holding.run, one.keep_seconds + one.holding.run.lease_seconds) for one in batch]
        )

    def _done(self, one: Outcome, written: bool) -> None:
        one.holding.written = written
        self._holdings.remove(one.holding)
        for then in one.then:
            try:
                then(written)
            except Exception:
                logger.exception("after the outcome of run %s", _run_of(one))
        self._waiting.pop(one.holding.run.start_id, None)  # last: a worker that ends waits until all have heard

    def _seconds_left(self) -> float:
        if self._new:
            return 0.0
        at = min((self._line.goes_at(one) for one in self._waiting.values()), default=float("inf"))
        return max(0.0, at - self._holdings.clock())


def _is_refusal(error: StoreError) -> bool:
    """Whether the database answered to this very statement, and not because of a lock or a time-out."""
    return isinstance(error, DatabaseUncertain) or not isinstance(error, (DatabaseAway, DatabaseBusy))


def _run_of(one: Outcome) -> str:
    return one.holding.run.run_id
