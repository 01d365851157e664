"""Asks the database which of the waiting messages may begin: in batches, for a bounded time, each answered once."""

import logging
from collections import deque
from collections.abc import Callable

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.lifecycle import JOB_DELETED, OVERLAP, has_expired, why_refused
from celery_sqlbeat.model import StartedRun, StartRequest
from celery_sqlbeat.store.protocol import WorkerStore
from celery_sqlbeat.store.steps import Steps
from celery_sqlbeat.worker.answers import Answer, Away, Begun, Stale
from celery_sqlbeat.worker.holding import Holding
from celery_sqlbeat.worker.holdings import Holdings
from celery_sqlbeat.worker.line import Line
from celery_sqlbeat.worker.requests import can_be_asked
from celery_sqlbeat.worker.waiting import Waiting, next_batches

logger = logging.getLogger(__name__)
Answered = Callable[[Answer], None]


class Ask(Waiting):
    """A message that waits for its answer."""

    __slots__ = ("ahead", "answered", "give_up_at", "request", "unsettled")

    def __init__(self, most: int, request: StartRequest, answered: Answered, ahead: bool, give_up_at: float) -> None:
        super().__init__(most)
        self.request = request
        self.answered: Answered | None = answered
        """None once it has its answer, or was withdrawn."""
        self.ahead = ahead
        self.give_up_at = give_up_at
        self.unsettled = False
        """The start was sent, and what became of it is not known."""


class Starts:
    """The asks of one process. `ask`, `withdraw` and `close` come from any thread, `steps` from one at a time."""

    def __init__(
        self,
        store: WorkerStore,
        holdings: Holdings,
        begun: Callable[[Holding], None],
        unstart: Callable[[Holding], None],
    ) -> None:
        self._store = store
        self._holdings = holdings
        self._begun = begun
        self._unstart = unstart
        self._all: dict[str, Ask] = {}
        self._new: deque[Ask] = deque()
        self._waiting: dict[str, Ask] = {}
        self._closing = False
        timing = holdings.timing
        self._line = Line(holdings.clock, holdings.random, timing.gather_starts, timing.enough_starts)

    def ask(self, request: StartRequest, answered: Answered, ahead: bool) -> None:
        """Ask with the next batch."""
        timing = self._holdings.timing
        one = Ask(timing.batch_size, request, answered, ahead, self._holdings.clock() + timing.ask_seconds)
        self._all[request.start_id] = one
        self._new.append(one)
        if not ahead:
            self.hurry(keeps_slot=True)

    def hurry(self, keeps_slot: bool) -> bool:
        """Gather not for long: somebody could begin, but for the answer. Whether that is news."""
        timing = self._holdings.timing
        return self._line.hurry(timing.gather_slots if keeps_slot else timing.gather_passing)

    def withdraw(self, request: StartRequest) -> None:
        """Want no answer any more."""
        one = self._all.get(request.start_id)
        if one is not None:
            one.answered = None

    def close(self) -> None:
        """Ask nothing new; what waits goes back to the broker."""
        self._closing = True
        self._line.close()

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for an answer, and what was sent is known to have begun or not."""
        return not self._all

    @property
    def is_away(self) -> bool:
        """Whether the database was away when it was last asked: an answer may take long."""
        return self._line.is_away

    def steps(self) -> Steps[float]:
        """Ask for what has gathered; returns the seconds until the next time."""
        now = self._holdings.clock()
        self._take_new(now)
        self._give_up(now)
        if self._line.is_open(now):
            gathers = self._line.gathers(now)
            if gathers:
                return gathers
            for batch in next_batches(self._waiting.values(), now, lambda one: one.request.run_id):
                yield from self._ask(batch)
        return self._seconds_left()

    def _take_new(self, now: float) -> None:
        if self._new:
            self._line.came(len(self._new), now)
        while self._new:
            one = self._new.popleft()
            if not can_be_asked(*one.request):
                self._settle(one, Stale("it names no claim"))
            elif self._closing:
                self._settle(one, Away("the worker stops"))
            elif len(self._waiting) >= self._holdings.timing.most_asks:
                self._settle(one, Away("too many messages wait"))
            elif self._is_being_stopped(one.request):
                # Its release follows, and a new attempt; until then this run must not begin anew.
                self._settle(one, Stale("an earlier try of this run is being stopped"))
            else:
                self._waiting[one.request.start_id] = one

    def _is_being_stopped(self, request: StartRequest) -> bool:
        holding = self._holdings.of_run(request.run_id)
        return holding is not None and holding.lost

    def _give_up(self, now: float) -> None:
        for one in list(self._waiting.values()):
            late = now >= one.give_up_at
            if late or self._closing:
                self._answer(one, Away("the database could not be asked" if late else "the worker stops"))
            if one.answered is None and (
                # If it was begun and its answer never came, its lease has ended by then.
                not one.unsettled or now >= one.give_up_at + self._holdings.timing.lease_seconds
            ):
                self._settle(one, None)

    def _ask(self, batch: list[Ask]) -> Steps[None]:
        sent_at = self._holdings.clock()
        for one in batch:
            one.unsettled = True
        try:
            started = yield from self._store.starting([one.request for one in batch])
        except StoreError as error:
            self._failed(batch, error)
            return
        self._line.succeeded()
        refused: list[Ask] = []
        for one in batch:
            run = started.get(one.request.run_id)
            if run is None:
                refused.append(one)
            elif run.start_id != one.request.start_id:
                self._settle(one, Stale("a duplicate: another copy of it begins"))
            else:
                self._begin(one, run, sent_at)
        if refused:
            yield from self._refuse(refused)

    def _refuse(self, batch: list[Ask]) -> Steps[None]:
        try:
            found = yield from self._store.refusing([one.request for one in batch])
        except StoreError as error:
            self._failed(batch, error)  # they are asked for once more, and refused again
            return
        for one in batch:
            refused = found.get(one.request.run_id)
            why = why_refused(refused)
            if why is None:
                self._settle(one, Away("what kept its run from beginning has passed"))
            else:
                ends = refused is None or refused.reason in (OVERLAP, JOB_DELETED)
                self._settle(one, Stale(why, ends, has_expired(refused)))

    def _failed(self, batch: list[Ask], error: StoreError) -> None:
        alone = self._line.failed(batch, error)
        if alone is not None:
            logger.error("run %s cannot be started: %s", alone.request.run_id, error)
            self._settle(alone, Away(str(error)))

    def _begin(self, one: Ask, run: StartedRun, sent_at: float) -> None:
        holding = self._holdings.add(run, one.request.celery_retries, sent_at, one.ahead)
        if self._holdings.clock() >= holding.stop_at:
            self._unstart(holding)
            self._settle(one, Away("the answer came too late"))
        elif self._settle(one, Begun(holding)):
            self._begun(holding)
        else:
            self._unstart(holding)

    def _settle(self, one: Ask, answer: Answer | None) -> bool:
        """Nothing more is to be found out about it."""
        self._waiting.pop(one.request.start_id, None)
        self._all.pop(one.request.start_id, None)
        return self._answer(one, answer) if answer is not None else False

    def _answer(self, one: Ask, answer: Answer) -> bool:
        """Whether somebody heard it."""
        with self._holdings.guard:  # against a withdrawal at this moment: it comes before or after
            answered, one.answered = one.answered, None
        if answered is None:
            return False
        try:
            answered(answer)
        except Exception:
            logger.exception("the answer for run %s was not taken", one.request.run_id)
            return False
        return True

    def _seconds_left(self) -> float:
        if self._new:
            return 0.0
        at = float("inf")
        for one in self._waiting.values():
            at = min(at, self._line.goes_at(one))
            if one.answered is not None:
                at = min(at, one.give_up_at)
        return max(0.0, at - self._holdings.clock())
