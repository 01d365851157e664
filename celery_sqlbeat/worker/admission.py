"""Our messages that have not begun: how they get their leases, and where those go that do not.

Nothing here blocks. `capacity` says when a message may use the pool; the runtime gives the leases.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from celery_sqlbeat import environment, events
from celery_sqlbeat.celery_bridge.consumer import call_after, lower_prefetch, raise_prefetch, read_ahead
from celery_sqlbeat.celery_bridge.event_loop import Loop
from celery_sqlbeat.celery_bridge.message_header import HEADER, Header, Malformed, Newer, read, shown
from celery_sqlbeat.celery_bridge.redis import RedisRequeue
from celery_sqlbeat.celery_bridge.requests import drop, drop_expired, finished, return_now
from celery_sqlbeat.celery_bridge.tasks import NO_REPORT, Report
from celery_sqlbeat.model import StartRequest
from celery_sqlbeat.worker.lease import RunLease, StaleMessage, StartAnswer, Started, StoreUnavailable, WrongStore
from celery_sqlbeat.worker.lease.heartbeats import WaitingRuns
from celery_sqlbeat.worker.lease.starts import StartQuestion
from celery_sqlbeat.worker.results import TaskResult
from celery_sqlbeat.worker.runtime import WorkerRuntime
from celery_sqlbeat.worker.task.flags import is_begun
from celery_sqlbeat.worker.task.own_strategy import strategy_message_of
from celery_sqlbeat.worker.task.tracking import TrackedRequest

RETURNED = "it goes back to the broker"
_RETURN_SECONDS = 5.0  # how long a message is kept that others must run: else it comes back at once
_AWAY_SECONDS = 1.0  # the same where the database was away: it may be back at any moment
_RETURNED_A_SECOND = 20  # at most, so that a whole queue of them floods neither the log nor the broker
_MOST_EXTRA = 100  # messages that the broker may replace by others; more of them hold up the queue
_MOST_OF_OTHERS = 5000  # the same for messages that only others run: what waits behind them is for this worker
_IDS_AT_ONCE = 256  # asking the system for randomness costs more than the rest of an id
_later = environment.Later()
_start_ids: list[str] = []


class PendingMessage:
    """One message, from when it could run until its body begins, or until it is gone."""

    def __init__(self, execution: TrackedRequest, header: Header) -> None:
        self.execution = execution
        self.header = header
        self.req = execution.req
        self.question: StartQuestion | None = None  # once it has asked
        self.run_lease: RunLease | None = None
        """Once it has its answer; who withdraws the message gives it back."""
        self.is_withdrawn = False
        """Whether the body must not run any more."""
        self.is_cut = False
        """Whether that is because the connection ended, and the pool's capacity with it."""
        self.is_passed_on = False
        """Whether its run has begun before, for a strategy of its task that has passed it on."""


Answered = Callable[[PendingMessage, StartAnswer], None]


class Admission:
    """The messages of one worker that have not begun.

    Called where the consumer is served, unless a method says otherwise.
    """

    def __init__(self, worker_runtime: WorkerRuntime, loop: Loop, received: WaitingRuns) -> None:
        self.worker_runtime, self.loop = worker_runtime, loop
        self._received = received
        self.is_closing = False
        self._consumer: Any = None
        self._requeue: RedisRequeue | None = None
        self._lock = environment.lock()
        self._open: set[PendingMessage] = set()
        self._kept: set[Any] = set()  # requests that go back to the broker in a while
        self._raised: set[Any] = set()  # requests that have raised the prefetch while they wait

    def connected(self, consumer: Any) -> None:
        """Note the consumer of a new connection."""
        self._consumer, self._requeue = consumer, RedisRequeue.of(consumer, self.call_later)

    def refuse_header(self, req: Any, header: Malformed | Newer) -> None:
        """Drop a message with a header that is forged; return one that a newer worker can read."""
        if isinstance(header, Newer):
            reason = f"its sqlbeat header is of version {header.version}: upgrade celery-sqlbeat here"
            events.message_refused(message_id=req.id, task_name=req.name, effect=RETURNED, reason=reason)
            self._keep(req, _MOST_OF_OTHERS)
        else:
            reason = f"its sqlbeat header is forged or damaged: {header.reason}"
            events.message_refused(message_id=req.id, task_name=req.name, effect="it is dropped", reason=reason)
            drop(req, "malformed header")

    def receive(self, pending: PendingMessage) -> bool:
        """Take a message that waits for capacity; False where it goes back: the worker ends."""
        with self._lock:
            if not self.is_closing:
                self._open.add(pending)
                return True
        return_now(pending.req)
        return False

    def ask(self, pending: PendingMessage, answered: Answered, ahead: bool = False) -> None:
        """Ask for the lease; `answered` is called in any thread, unless it is withdrawn.

        `ahead`: the pool has no capacity for it yet, and will have in a moment. From any thread.
        """
        with self._lock:
            if pending.is_withdrawn:
                return
            question = pending.question = _question(pending.header, partial(self._hear, pending, answered), ahead)
        handed = strategy_message_of(pending.req.message)
        run_lease = handed.pass_on() if handed is not None else None
        if run_lease is not None:
            pending.is_passed_on = True
            self._hear(pending, answered, Started(run_lease))
            return
        self.worker_runtime.ask(pending.header, question)

    def _hear(self, pending: PendingMessage, answered: Answered, answer: StartAnswer) -> None:
        with self._lock:
            is_withdrawn = pending.is_withdrawn
            if not is_withdrawn and isinstance(answer, Started):
                pending.run_lease = answer.run_lease
        if not is_withdrawn:
            answered(pending, answer)
        elif isinstance(answer, Started):
            self.worker_runtime.unstart(answer.run_lease)

    def read_ahead(self, messages: int) -> None:
        """Let the broker send so many messages more, or less again."""
        if self._consumer is not None:
            read_ahead(self._consumer, messages)

    def waits_on(self, pending: PendingMessage) -> None:
        """Let others pass a message that waits for its answer without capacity."""
        if pending in self._open:
            self._raise(pending.req)

    def goes_on(self, pending: PendingMessage) -> None:
        """End that: the message waits as all others do."""
        self._lower(pending.req)

    def is_open(self, pending: PendingMessage) -> bool:
        """Return whether the message still waits here."""
        return pending in self._open

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call this in a while, where the consumer is served. From any thread."""
        _later.after(seconds, partial(self.loop.post, action))

    def begins(self, pending: PendingMessage, run_lease: RunLease) -> bool:
        """Return whether the body may begin now; else drop the message. From any thread.

        The caller gives the capacity back.
        """
        with self._lock:
            self._open.discard(pending)
            withdrawn = pending.is_withdrawn
        if pending.req in self._raised:
            self.loop.post(lambda: self._lower(pending.req))
        if withdrawn:
            return False
        if not pending.is_passed_on and not run_lease.take():
            reason = run_lease.reason or "the lease was given back before the body could begin"
            drop(pending.req, reason, run_lease.asked is not None)
            return False
        self._received.begun(pending.header)
        pending.execution.begin(run_lease)
        return True

    def refuse(self, pending: PendingMessage, answer: StartAnswer) -> None:
        """Drop or return a message that gets no lease. The caller gives the capacity back."""
        with self._lock:
            self._open.discard(pending)
        if pending.is_withdrawn:
            return
        req = pending.req
        self._lower(req)
        if isinstance(answer, StaleMessage):
            events.start_rejected(message_id=req.id, task_name=req.name, reason=answer.reason, ends_slot=answer.ends)
            if answer.expired:  # a beat judged by the server's clock
                drop_expired(req)
            else:
                drop(req, answer.reason, answer.cancelled)
        elif isinstance(answer, StoreUnavailable):
            events.message_returned(message_id=req.id, task_name=req.name, reason=answer.reason)
            self._keep(req, seconds=_AWAY_SECONDS)
        elif isinstance(answer, WrongStore):
            events.message_refused(message_id=req.id, task_name=req.name, effect=RETURNED, reason=answer.reason)
            self._keep(req, _MOST_OF_OTHERS)

    def forget(self, pending: PendingMessage) -> None:
        """Remove a message that Celery has revoked."""
        with self._lock:
            self._open.discard(pending)

    def return_message(self, req: Any, is_of_others: bool = False) -> None:
        """Return a message that could not be asked about, or that only others can run."""
        self._keep(req, _MOST_OF_OTHERS if is_of_others else _MOST_EXTRA)

    def unstart_late(self, pending: PendingMessage, run_lease: RunLease) -> None:
        """Give a run back that has a lease, and for which the pool had no capacity in time."""
        with self._lock:
            if pending not in self._open:
                return
            self._open.discard(pending)
            pending.is_withdrawn = True
        self._lower(pending.req)
        self.worker_runtime.unstart(run_lease)
        drop(pending.req, "the pool had no capacity in time")

    def leave(self, is_closing: bool) -> None:
        """Return all messages to the broker: the connection ends, and they never begin here."""
        with self._lock:
            self.is_closing = self.is_closing or is_closing
            waiting, self._open = self._open, set()
            for pending in waiting:
                pending.is_withdrawn = pending.is_cut = True
        for pending in waiting:
            if pending.question is not None:
                self.worker_runtime.withdraw(pending.question)
            if pending.run_lease is not None:  # nobody else would give it back
                self.worker_runtime.unstart(pending.run_lease)
        kept, self._kept = self._kept, set()
        self._raised.clear()
        if self._requeue is not None:
            self._requeue.leave()
            self._requeue = None
        if is_closing:
            for req in [*(pending.req for pending in waiting), *kept]:
                return_now(req)

    def end_revoked(self, context: Any, expired: bool) -> None:
        """End the run of a message that Celery revoked before it came here. From any thread."""
        header = read(shown(context.get(HEADER)), {"id": context.id, "retries": context.retries})
        if not isinstance(header, Header) or is_begun(context):
            return
        if not (header.forgotten and self.worker_runtime.is_for_anybody(header)):
            self.end_unbegun(header, TaskResult.EXPIRED if expired else TaskResult.REVOKED)

    def end_unbegun(
        self,
        header: Header,
        how: TaskResult,
        told: Report = NO_REPORT,
        heard: Callable[[StartAnswer], None] = lambda _answer: None,
    ) -> None:
        """End the run of a message that never runs; `heard` gets the answer, in any thread."""

        def answered(answer: StartAnswer) -> None:
            if isinstance(answer, Started) and answer.run_lease.take():
                self.worker_runtime.finish(answer.run_lease, how, told)
            heard(answer)

        self.worker_runtime.ask(header, _question(header, answered))

    def _keep(self, req: Any, most: int = _MOST_EXTRA, seconds: float = _RETURN_SECONDS) -> None:
        """Return a message to the broker in a while."""
        finished(req)
        if self._consumer is None or self.is_closing:
            return_now(req)
            return
        self._kept.add(req)
        self._raise(req, most)
        seconds = max(seconds, len(self._kept) / _RETURNED_A_SECOND)
        call_after(self._consumer, seconds * (0.8 + 0.4 * environment.chance()), self._return, req)

    def _return(self, req: Any) -> None:
        if self._requeue is not None:
            self._requeue.give(partial(self._give, req, return_now))
        else:
            self._give(req, lambda req: req.reject(requeue=True))

    def _give(self, req: Any, give: Callable[[Any], None]) -> None:
        if req in self._kept:  # the connection has not ended since
            self._kept.discard(req)
            self._lower(req)
            give(req)

    def _raise(self, req: Any, most: int = _MOST_EXTRA) -> None:
        if self._consumer is not None and len(self._raised) < most and req not in self._raised:
            self._raised.add(req)
            raise_prefetch(self._consumer)

    def _lower(self, req: Any) -> None:
        if req in self._raised:
            self._raised.discard(req)
            lower_prefetch(self._consumer)


def _question(header: Header, answered: Callable[[StartAnswer], None], ahead: bool = False) -> StartQuestion:
    request = StartRequest(header.run, header.claim, header.fence, _start_id(), header.celery_retries)
    return StartQuestion(request, answered, ahead, header.retry, header.pool)


def _start_id() -> str:
    """Return a random id, for each delivery of a message."""
    while True:
        try:
            return _start_ids.pop()
        except IndexError:
            _start_ids.extend(environment.THIS_MACHINE.ids.claim_ids(_IDS_AT_ONCE))
