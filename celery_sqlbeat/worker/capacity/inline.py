"""The capacity of pools that run bodies in this process: a message asks inside the pool's thread.

`PoolCapacity` and `OutageParking` are what all kinds of pools have in common.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from celery.exceptions import TaskRevokedError, WorkerShutdown, WorkerTerminate

from celery_sqlbeat import environment
from celery_sqlbeat.celery_bridge.consumer import is_stopping
from celery_sqlbeat.celery_bridge.pools import BodyTimeout, PoolCall, hand_to, is_green_exit, run_inside
from celery_sqlbeat.celery_bridge.requests import finished
from celery_sqlbeat.worker.admission import Admission, PendingMessage
from celery_sqlbeat.worker.lease import StartAnswer, Started, StoreUnavailable
from celery_sqlbeat.worker.lease.batching import ASK_SECONDS
from celery_sqlbeat.worker.results import TaskResult
from celery_sqlbeat.worker.task.body import NotBegun
from celery_sqlbeat.worker.task.stopping import InterruptibleBody
from celery_sqlbeat.worker.task.tracking import TrackedRequest

CAPACITY_SECONDS = 1.0  # how long a message keeps capacity for its answer: others need it, too
_CHECK_SECONDS = 0.1  # a check costs next to nothing

# Many tasks begin in one instant where one batch of starts is answered, and each early
# acknowledgement needs a connection while it lasts. kombu has ten for Redis, and an error for more.
_acknowledging = threading.BoundedSemaphore(4)  # green where the pool is
_later = environment.Later()


class ParkedMessage(NamedTuple):
    """A message that does not ask."""

    again: Callable[[], None]
    give_up_at: float


class OutageParking:
    """The messages of one worker that wait beside its pool until the database is back.

    Capacity that they held would be lost to others. One of them asks meanwhile, so that the answer
    is noticed. If all asked, all would get leases at once, and no capacity. Called where the
    consumer is served.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._probe: PendingMessage | None = None
        """The message that asks."""
        self._parked: dict[PendingMessage, ParkedMessage] = {}
        self._is_checking = False

    def holds(self, pending: PendingMessage, again: Callable[[], None]) -> bool:
        """Park a message if it need not ask; return whether it is parked.

        `again` admits it later.
        """
        if not self._admission.worker_runtime.is_unavailable:
            return False
        if not self._has_probe():
            self._probe = pending
            return False
        self._admission.waits_on(pending)
        self._parked[pending] = ParkedMessage(again, environment.monotonic() + ASK_SECONDS)
        self._check_soon()
        return True

    def leave(self) -> None:
        """Forget all messages, since the connection has ended."""
        self._probe = None
        self._parked.clear()
        self._is_checking = False  # the event loop has forgotten its timers

    def _has_probe(self) -> bool:
        return self._probe is not None and self._admission.is_open(self._probe)

    def _check_soon(self) -> None:
        if self._parked and not self._is_checking:
            self._is_checking = True
            self._admission.call_later(_CHECK_SECONDS, self._check)

    def _check(self) -> None:
        self._is_checking = False
        now = environment.monotonic()
        for pending, parked in list(self._parked.items()):
            goes_on = not self._admission.worker_runtime.is_unavailable or not self._has_probe()
            if goes_on or now >= parked.give_up_at or not self._admission.is_open(pending):
                del self._parked[pending]
            if not self._admission.is_open(pending):
                continue
            if goes_on:
                self._admission.goes_on(pending)
                parked.again()
            elif now >= parked.give_up_at:
                self._admission.refuse(pending, StoreUnavailable("the database could not be asked"))
        self._check_soon()


class PoolCapacity:
    """When our messages may use a pool; here one that gives capacity only to what it runs.

    Called where the consumer is served.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._parking = OutageParking(admission)

    def foresee(self, pending: PendingMessage) -> None:
        """Note a message that will be admitted when there is capacity."""

    def admit(self, pending: PendingMessage) -> None:
        """Take a message that could run."""
        raise NotImplementedError

    def release(self) -> None:
        """Give back the capacity of the message that came last: it will not run."""

    def leave(self, is_closing: bool) -> None:
        """Forget all messages: the connection has ended, perhaps with the worker."""
        self._parking.leave()


class Reply:
    """An answer that is waited for, but not for long: a later one goes another way."""

    def __init__(self, hand_over: Callable[[Callable[[], None]], None], late: Callable[[Any], None]) -> None:
        """`hand_over` calls from a thread in which an event of the pool may be set."""
        self._hand_over, self._late = hand_over, late
        self._event = threading.Event()  # green where the pool is
        self._lock = environment.lock()
        self._answer: Any = None
        self._has_left = False

    def give(self, _pending: PendingMessage, answer: Any) -> None:
        """Give the answer, from any thread."""
        with self._lock:
            self._answer = answer
            has_left = self._has_left
        if has_left:
            self._late(answer)
        else:
            self._hand_over(self._event.set)

    def wait(self, seconds: float) -> Any:
        """Return the answer; None where it goes another way."""
        self._event.wait(seconds)
        with self._lock:
            if self._answer is None:
                self._has_left = True
            return self._answer


def run_call(call: PoolCall, execution: TrackedRequest, body_guard: InterruptibleBody) -> None:
    """Run a task in this thread of the pool, and tell Celery how it ended."""
    execution.body_guard = body_guard
    if execution.req.revoked():
        return
    try:
        with _acknowledging:
            call.accept()
    except BaseException:
        execution.not_begun()
        raise
    try:
        result = body_guard.run(partial(_run_body, call, execution))
    except (WorkerShutdown, WorkerTerminate):
        execution.end(TaskResult.STOPPED)
        raise
    except BodyTimeout as timeout:
        call.time_out(timeout.limit)
    except MemoryError:
        execution.end(TaskResult.FAILURE)
        raise
    except Exception:
        call.fail()
    except BaseException as error:
        if is_green_exit(error):
            _end_killed(execution)
        else:
            call.lose(error)
    else:
        call.succeed(result)


def _run_body(call: PoolCall, execution: TrackedRequest) -> Any:
    if not execution.begin_body():
        raise NotBegun
    return call.run_body()


def _end_killed(execution: TrackedRequest) -> None:
    """End the run of a green thread that was killed; its pool would report a success."""
    execution.end(TaskResult.STOPPED if execution.is_cancelled else TaskResult.REVOKED)
    finished(execution.req)
    execution.req.acknowledge()


class InlineCapacity(PoolCapacity):
    """threads, gevent, eventlet, solo: a message asks in a thread of the pool, and runs there."""

    def __init__(
        self,
        admission: Admission,
        pool: Any,
        hand_over: Callable[[Callable[[], None]], None],
        make_guard: Callable[[TrackedRequest], InterruptibleBody],
        submit: Callable[[Callable[[], None]], None],
    ) -> None:
        """`submit` calls what hands a task to the pool, which may block until that has a thread."""
        super().__init__(admission)
        self._pool = pool
        self._hand_over, self._make_guard, self._submit = hand_over, make_guard, submit

    def admit(self, pending: PendingMessage) -> None:
        """Hand it to the pool, in whose thread the rest follows."""
        if self._parking.holds(pending, partial(self._submit, partial(self.admit, pending))):
            return
        try:
            hand_to(pending.req, self._pool, partial(self._take, pending))
        except TaskRevokedError:  # or expired; `task_revoked` ends its run
            self._admission.forget(pending)

    def _take(self, pending: PendingMessage, call: PoolCall) -> Any:
        if not self._admission.worker_runtime.is_unavailable:
            return run_inside(self._pool, partial(self._enter, pending, call))
        self._admission.ask(pending, lambda pending, answer: self._late(pending, call, answer))
        self._admission.waits_on(pending)
        return None

    def _enter(self, pending: PendingMessage, call: PoolCall) -> None:
        if pending.is_withdrawn or is_stopping():  # a green consumer waited for this thread, and ends next
            return
        reply = Reply(self._hand_over, partial(self._late, pending, call))
        self._admission.ask(pending, reply.give)
        answer = reply.wait(CAPACITY_SECONDS)
        if answer is not None:
            self._on_answer(pending, call, answer)
        else:
            self._admission.loop.post(lambda: self._admission.waits_on(pending))

    def _late(self, pending: PendingMessage, call: PoolCall, answer: StartAnswer) -> None:
        if not isinstance(answer, Started):
            self._admission.loop.post(lambda: self._admission.refuse(pending, answer))
            return
        unstart_late = partial(self._admission.unstart_late, pending, answer.run_lease)
        _later.after(CAPACITY_SECONDS, partial(self._admission.loop.post, unstart_late))
        again = partial(run_inside, self._pool, partial(self._on_answer, pending, call, answer))
        self._admission.loop.post(lambda: self._submit(again))

    def _on_answer(self, pending: PendingMessage, call: PoolCall, answer: StartAnswer) -> None:
        if not isinstance(answer, Started):
            self._admission.loop.post(lambda: self._admission.refuse(pending, answer))
        elif self._admission.begins(pending, answer.run_lease):
            run_call(call, pending.execution, self._make_guard(pending.execution))
