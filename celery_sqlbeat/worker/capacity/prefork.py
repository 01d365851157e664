"""The capacity of prefork: a message asks for its lease with a process in hand.

Beside an event loop it asks ahead while tasks are shorter than the question to the database, and
lets go of its process for the time of the question: the next one is there when the answer is.
"""

import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from celery_sqlbeat import environment
from celery_sqlbeat.celery_bridge.pools import Capacity, wait_for_process
from celery_sqlbeat.celery_bridge.redis import RedisAcks
from celery_sqlbeat.celery_bridge.requests import is_with_pool
from celery_sqlbeat.worker.admission import Admission, PendingMessage
from celery_sqlbeat.worker.capacity.inline import CAPACITY_SECONDS, OutageParking, PoolCapacity, Reply
from celery_sqlbeat.worker.lease import RunLease, StartAnswer, Started

Process = Callable[[Any], Any]
"""Hands a request to the pool."""

SOON_SECONDS = 0.035  # a few statements long, and far below the second after which an unused lease is given back
_UNKNOWN = 2 * SOON_SECONDS  # too long to ask ahead: the rate is not known
_MOST = 64  # leases ahead; what a worker that dies then holds waits for the end of its lease
_LATEST = 0.1  # the weight of the last gap


class CapacityEstimate:
    """Estimates how many waiting messages will have capacity in a moment."""

    def __init__(self, clock: Callable[[], float] = environment.monotonic) -> None:
        self._clock = clock
        self._last_at: float | None = None
        self._others_wait = False
        self._gap = _UNKNOWN  # seconds between two processes that come free, smoothed

    def capacity_came(self, others_wait: bool) -> None:
        """Note that a message got capacity, and whether others wait."""
        now = self._clock()
        if self._last_at is not None:
            gap = min(now - self._last_at, 1.0)
            if self._others_wait:  # else it says nothing about the tasks
                self._gap += _LATEST * (gap - self._gap)
            elif gap == 1.0:
                self._gap = max(self._gap, _UNKNOWN)  # after a rest the rate is not known
        self._last_at, self._others_wait = now, others_wait

    def soon(self) -> int:
        """Return how many messages get capacity within a moment, if tasks go on as they did."""
        if self._last_at is None:
            return 0
        # Tasks have become longer where the next process comes late.
        gap = max(self._gap, self._clock() - self._last_at)
        return min(_MOST, int(SOON_SECONDS / gap)) if gap > 0 else _MOST


_SHORT = 8  # processes that come free in a moment: tasks of a few milliseconds, or many processes
_EXTRA = 32  # messages; about what such tasks work off while one batch of leases is on its way
_CHECK_SECONDS = 1.0  # how soon it is noticed that tasks are short no longer


class PreforkCapacity(PoolCapacity):
    """Capacity beside an event loop, which goes on until answers come. All of it in that loop."""

    def __init__(self, admission: Admission, worker: Any, process: Process) -> None:
        self._admission, self._process = admission, process
        self._capacity = Capacity(worker)
        self._acks = RedisAcks(worker.timer.call_after)
        self._estimate = CapacityEstimate()
        self._parking = OutageParking(admission)
        self._foreseen: deque[PendingMessage] = deque()  # without a process, and not asked
        self._ahead: dict[PendingMessage, StartAnswer | None] = {}  # without a process, asked; the answer
        self._passing: set[PendingMessage] = set()  # asked, and has let its process go
        self._waiting: dict[PendingMessage, float] = {}  # asked, with a process; the oldest first
        self._is_watching = False
        self._reads_ahead = False

    def foresee(self, pending: PendingMessage) -> None:
        """Note a message that waits for a process, behind those that came before."""
        if not self._capacity.is_free:
            self._foreseen.append(pending)
            self._ask_ahead()

    def admit(self, pending: PendingMessage) -> None:
        """Ask for the lease of a message that has a process; it keeps that for a second at most."""
        if pending.is_withdrawn:
            self.release()
            return
        if pending in self._ahead:
            answer = self._ahead.pop(pending)
            self._capacity_came()
            if answer is not None:
                self._with_process(pending, answer)
                return
            self._admission.worker_runtime.flush_soon()
        else:
            if self._foreseen:
                with contextlib.suppress(ValueError):  # it had a process at once
                    self._foreseen.remove(pending)  # the first one, unless a pool has an order of its own
            if self._parking.holds(pending, partial(self._again, pending)):
                self._let_others_soon(pending)
                return
            passes = self._comes_soon()
            self._capacity_came()
            self._ask(pending, ahead=passes)
            if passes:
                self._passing.add(pending)
                self._admission.worker_runtime.flush_soon()
                self.release()
                return
        if self._admission.worker_runtime.is_unavailable:
            self._admission.waits_on(pending)
            self._let_others_soon(pending)
            return
        self._waiting[pending] = environment.monotonic()
        self._watch()

    def leave(self, is_closing: bool) -> None:
        """Forget all messages: the connection has ended."""
        self._acks.leave(is_closing)
        self._parking.leave()
        self._waiting.clear()
        self._foreseen.clear()
        self._ahead.clear()
        self._passing.clear()
        self._is_watching = self._reads_ahead = False

    def release(self) -> None:
        """Give a process back."""
        self._capacity.release()

    def _again(self, pending: PendingMessage) -> None:
        self.foresee(pending)
        self._capacity.acquire(self.admit, pending)

    def _let_others_soon(self, pending: PendingMessage) -> None:
        # Not at once: the next message comes with the process, and each within the call before it.
        self._admission.loop.post(partial(self._let_others, pending))

    def _let_others(self, pending: PendingMessage) -> None:
        if not pending.is_cut:
            self.release()

    def _comes_soon(self) -> bool:
        """Return whether a message that lets its process go gets another one in time."""
        soon = self._estimate.soon()
        return soon >= _SHORT and len(self._ahead) + len(self._passing) < soon

    def _capacity_came(self) -> None:
        self._estimate.capacity_came(bool(self._foreseen or self._ahead or self._passing))
        self._ask_ahead()

    def _ask_ahead(self) -> None:
        if self._foreseen:
            soon = self._estimate.soon()
            while self._foreseen and len(self._ahead) + len(self._passing) < soon:
                pending = self._foreseen.popleft()
                self._ahead[pending] = None
                self._ask(pending, ahead=True)
            self._read_ahead(soon)

    def _read_ahead(self, soon: int) -> None:
        """Let the broker send more messages than Celery asks for, while tasks are that short."""
        if soon >= _SHORT and self._capacity.may_read_ahead and not self._reads_ahead:
            self._reads_ahead = True
            self._admission.read_ahead(_EXTRA)
            self._capacity.call_after(_CHECK_SECONDS, self._check_rate)

    def _check_rate(self) -> None:
        if self._reads_ahead and self._estimate.soon() < _SHORT:
            self._reads_ahead = False
            self._admission.read_ahead(-_EXTRA)
        elif self._reads_ahead:
            self._capacity.call_after(_CHECK_SECONDS, self._check_rate)

    def _ask(self, pending: PendingMessage, ahead: bool) -> None:
        self._admission.ask(pending, self._answered, ahead)

    def _answered(self, pending: PendingMessage, answer: StartAnswer) -> None:
        self._admission.loop.post(partial(self._on_answer, pending, answer))

    def _on_answer(self, pending: PendingMessage, answer: StartAnswer) -> None:
        if pending in self._ahead:
            self._ahead[pending] = answer
            if not isinstance(answer, Started):
                self._admission.refuse(pending, answer)
            return
        had_process = self._waiting.pop(pending, None) is not None
        passed = pending in self._passing
        self._passing.discard(pending)
        if pending.is_cut:
            return
        if had_process:
            if not isinstance(answer, Started):
                self._admission.refuse(pending, answer)
            self._with_process(pending, answer)
        elif not isinstance(answer, Started):
            self._admission.refuse(pending, answer)
        else:
            if not passed:  # else the lease manager gives the lease back by then
                self._capacity.call_after(CAPACITY_SECONDS, self._admission.unstart_late, pending, answer.run_lease)
            self._capacity.acquire(self._run, pending, answer.run_lease)

    def _with_process(self, pending: PendingMessage, answer: StartAnswer) -> None:
        if isinstance(answer, Started):
            self._run(pending, answer.run_lease)
        else:
            self.release()

    def _run(self, pending: PendingMessage, run_lease: RunLease) -> None:
        if not self._admission.begins(pending, run_lease):
            if not pending.is_cut:
                self.release()
            return
        self._acks.gather(pending.req.message)
        try:
            self._process(pending.req)
        except BaseException:
            pending.execution.not_begun()
            raise
        if not is_with_pool(pending.req):  # the pool takes nothing any more, or the task was revoked
            pending.execution.not_begun()

    def _watch(self) -> None:
        if self._waiting and not self._is_watching:
            self._is_watching = True
            self._capacity.call_after(CAPACITY_SECONDS / 2, self._let_go)

    def _let_go(self) -> None:
        """Let go of processes whose messages wait for long: other messages need no lease."""
        self._is_watching = False
        oldest = environment.monotonic() - CAPACITY_SECONDS
        for pending in [pending for pending, since in self._waiting.items() if since < oldest]:
            del self._waiting[pending]
            self._admission.waits_on(pending)
            self.release()
        self._watch()


class BlockingPreforkCapacity(PoolCapacity):
    """Capacity without an event loop: the consumer itself waits for a process and an answer."""

    def __init__(self, admission: Admission, worker: Any, process: Process) -> None:
        super().__init__(admission)
        self._pool, self._process = worker.pool, process

    def admit(self, pending: PendingMessage) -> None:
        """Wait for a process, ask, and hand the task over."""
        if self._parking.holds(pending, partial(self.admit, pending)):
            return
        if self._admission.worker_runtime.is_unavailable:
            self._admission.ask(pending, self._late)
            self._admission.waits_on(pending)
            return
        wait_for_process(self._pool)
        if pending.is_withdrawn:
            return
        reply = Reply(lambda action: action(), partial(self._late, pending))
        self._admission.ask(pending, reply.give)
        answer = reply.wait(CAPACITY_SECONDS)
        if answer is not None:
            self._on_answer(pending, answer)
        else:
            self._admission.waits_on(pending)

    def _late(self, pending: PendingMessage, answer: StartAnswer) -> None:
        self._admission.loop.post(partial(self._on_answer, pending, answer))

    def _on_answer(self, pending: PendingMessage, answer: StartAnswer) -> None:
        if not isinstance(answer, Started):
            self._admission.refuse(pending, answer)
        elif self._admission.begins(pending, answer.run_lease):
            self._process(pending.req)
            if not is_with_pool(pending.req):
                pending.execution.not_begun()
