"""Ask the database in batches which messages may begin, and answer each once, in bounded time."""

from collections import deque
from collections.abc import Callable

from celery_sqlbeat import events
from celery_sqlbeat.celery_bridge.message_header import can_be_asked
from celery_sqlbeat.config.policy import RetryRule
from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.model import RefusedStart, StartedRun, StartRequest
from celery_sqlbeat.model.lifecycle import JOB_DELETED, OVERLAP, has_expired, was_cancelled, why_refused
from celery_sqlbeat.store import Store
from celery_sqlbeat.worker.lease import LeaseTable, RunLease, StaleMessage, StartAnswer, Started, StoreUnavailable
from celery_sqlbeat.worker.lease.batching import Batcher, QueuedRow, next_batches
from celery_sqlbeat.worker.lease.places import Places

Answered = Callable[[StartAnswer], None]


class StartQuestion(QueuedRow):
    """A message that asks for its lease, until it has its answer."""

    __slots__ = ("ahead", "answered", "give_up_at", "is_sent", "pool", "request", "retry")

    def __init__(
        self,
        request: StartRequest,
        answered: Answered,
        ahead: bool = False,
        retry: RetryRule | None = None,
        pool: str | None = None,
    ) -> None:
        """`ahead`: the worker's own pool has no capacity for the message yet.

        `retry`, `pool`: what its job says of them.
        `answered` is called once, in any thread, unless the question is withdrawn before.
        """
        super().__init__(request.run_id, 1)
        self.request, self.retry = request, retry
        self.answered: Answered | None = answered
        """None once it has its answer, or was withdrawn."""
        self.ahead = ahead
        self.pool = pool
        self.give_up_at = float("inf")
        self.is_sent = False
        """Whether its start was sent and no answer has come."""

    def answer(self, answer: StartAnswer) -> bool:
        """Tell the message its answer; return whether somebody heard it."""
        answered, self.answered = self.answered, None
        if answered is None:
            return False
        try:
            answered(answer)
        except Exception as error:
            events.fault_caught(doing="answer a message", error=error, subject=self.run_id)
            return False
        return True


class StartBatcher:
    """The starts of one process. `step` belongs to one thread, everything else to any."""

    def __init__(
        self,
        store: Store,
        worker: str,
        leases: LeaseTable,
        begun: Callable[[RunLease], None],
        unstart: Callable[..., None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._leases = leases
        self._begun = begun
        self._unstart = unstart
        self._places = Places(store, worker, leases.random)
        self._all: dict[str, StartQuestion] = {}
        self._new: deque[StartQuestion] = deque()
        self._waiting: dict[str, StartQuestion] = {}
        self._is_closing = False
        timing = leases.timing
        self.batcher = Batcher(leases.clock, leases.random, timing.ahead_spacing)

    def ask(self, question: StartQuestion) -> None:
        """Ask with the next batch."""
        timing = self._leases.timing
        question.most, question.give_up_at = timing.batch_size, self._leases.clock() + timing.ask_seconds
        self._all[question.request.start_id] = question
        self._new.append(question)
        if not question.ahead:
            self.flush_soon()

    def flush_soon(self) -> bool:
        """Ask soon: a message lacks only its answer. Return whether that is sooner than before."""
        return self.batcher.flush_soon(self._leases.timing.start_spacing)

    def close(self) -> None:
        """Begin nothing more: messages that wait go back to the broker."""
        self._is_closing = True
        self.batcher.close()

    @property
    def is_idle(self) -> bool:
        """Whether every question is answered, and every start that was sent."""
        return not self._all

    def step(self) -> float:
        """Ask for what has gathered; return the seconds until the next step."""
        now = self._leases.clock()
        self._take_new()
        self._give_up(now)
        if self._waiting and self.batcher.sends(now):
            for batch in next_batches(self._waiting.values(), now):
                self._ask(batch)
        return self._seconds_left()

    def _take_new(self) -> None:
        while self._new:
            question = self._new.popleft()
            if not can_be_asked(*question.request):
                self._resolve(question, StaleMessage("it names no claim"))
            elif self._is_closing:
                self._resolve(question, StoreUnavailable("the worker stops"))
            elif len(self._waiting) >= self._leases.timing.most_asks:
                self._resolve(question, StoreUnavailable("too many messages wait"))
            elif self._is_being_stopped(question.request):
                # Its release follows, and a new attempt; until then this run must not begin again.
                self._resolve(question, StaleMessage("an earlier try of this run is being stopped"))
            else:
                self._waiting[question.request.start_id] = question

    def _is_being_stopped(self, request: StartRequest) -> bool:
        run_lease = self._leases.of_run(request.run_id)
        return run_lease is not None and run_lease.lost

    def _give_up(self, now: float) -> None:
        for question in list(self._waiting.values()):
            late = now >= question.give_up_at
            if late or self._is_closing:
                question.answer(StoreUnavailable("the database could not be asked" if late else "the worker stops"))
            if question.answered is None and (
                # If it has begun and its answer never came, its lease has ended by then.
                not question.is_sent or now >= question.give_up_at + self._leases.timing.lease_seconds
            ):
                self._resolve(question, None)

    def _ask(self, batch: list[StartQuestion]) -> None:
        sent_at = self._leases.clock()
        for question in batch:
            question.is_sent = True
        try:
            answers = self._store.start([question.request for question in batch], self._worker)
        except StoreError as error:
            self._failed(batch, error)
            return
        self.batcher.succeeded()
        for question in batch:
            run = answers.get(question.request.run_id)
            if not isinstance(run, StartedRun):
                self._refuse(question, run)
            elif run.start_id != question.request.start_id:
                self._resolve(question, StaleMessage("a duplicate: another copy of it begins"))
            else:
                self._begin(question, run, sent_at)

    def _refuse(self, question: StartQuestion, refused: RefusedStart | None) -> None:
        why = why_refused(refused)
        if why is None:
            self._resolve(question, StoreUnavailable("what kept its run from beginning has passed"))
        else:
            ends = refused is None or refused.reason in (OVERLAP, JOB_DELETED)
            self._resolve(question, StaleMessage(why, ends, has_expired(refused), was_cancelled(refused)))

    def _failed(self, batch: list[StartQuestion], error: StoreError) -> None:
        alone = self.batcher.failed(batch, error)
        if alone is not None:
            events.row_refused(action="start", row=alone.request.run_id, error=error)
            self._resolve(alone, StoreUnavailable(str(error)))

    def _begin(self, question: StartQuestion, run: StartedRun, sent_at: float) -> None:
        run_lease = self._leases.add(run, question.request.celery_retries, sent_at, question.ahead)
        run_lease.retry = question.retry
        place = self._places.take(run, question.pool) if question.pool is not None else None
        if isinstance(place, str):
            self._unstart(run_lease, place)
            self._resolve(question, StaleMessage(place))
            return
        run_lease.place = place
        if self._leases.clock() >= run_lease.stop_at:
            self._unstart(run_lease)
            self._resolve(question, StoreUnavailable("the answer came too late"))
        elif self._resolve(question, Started(run_lease)):
            events.run_started(
                job_name=run.job_name, run_id=run.run_id, slot=run.scheduled_for, attempt=run.attempt, fence=run.fence
            )
            self._begun(run_lease)
        else:
            self._unstart(run_lease)

    def _resolve(self, question: StartQuestion, answer: StartAnswer | None) -> bool:
        """Forget a question whose answer is known; return whether somebody heard the answer."""
        self._waiting.pop(question.request.start_id, None)
        self._all.pop(question.request.start_id, None)
        return question.answer(answer) if answer is not None else False

    def _seconds_left(self) -> float:
        if self._new:
            return 0.0
        opens_at, at = self.batcher.opens_at, float("inf")
        for question in self._waiting.values():
            at = min(at, max(opens_at, question.not_before))
            if question.answered is not None:
                at = min(at, question.give_up_at)
        return max(0.0, at - self._leases.clock())
