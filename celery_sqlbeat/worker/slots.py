"""When one of our messages has a slot of the pool, and how its task runs there: by the kind of the pool.

prefork asks for the lease with the slot in hand, the other pools inside it. A slot does not wait long for a database,
and for one that is known to be away not at all (lull.py).
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from celery.exceptions import TaskRevokedError
from celery.worker.request import Request

from celery_sqlbeat.worker import native
from celery_sqlbeat.worker.answers import Answer, Begun
from celery_sqlbeat.worker.call import Call
from celery_sqlbeat.worker.causes import is_stopping
from celery_sqlbeat.worker.execution import Execution
from celery_sqlbeat.worker.gate import Asked, Gate
from celery_sqlbeat.worker.lull import Lull
from celery_sqlbeat.worker.window import Window

SLOT_SECONDS = 1.0  # how long a slot waits for an answer: it is there for other messages, too

Process = Callable[[Any], Any]


class Slots(Protocol):
    """The slots of one pool."""

    def foresee(self, asked: Asked) -> None:
        """The message has come, and will be admitted when it has a slot. Where the consumer is served."""

    def admit(self, asked: Asked) -> None:
        """The message could run. Where the consumer is served."""

    def release(self) -> None:
        """The message that came last will not run."""

    def leave(self, is_closing: bool) -> None:
        """The connection has ended: lost, or together with the worker."""


class _FreeSlots:
    """Slots that nobody has in hand before the pool gives them."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._lull = Lull(gate)

    def foresee(self, asked: Asked) -> None:
        """Nobody knows when a slot comes."""

    def release(self) -> None:
        """There is nothing to give back."""

    def leave(self, is_closing: bool) -> None:
        """No slot was held."""
        self._lull.leave()


class ThreadedSlots(_FreeSlots):
    """prefork without an event loop: the consumer itself waits for a slot, and then a moment for the answer."""

    def __init__(self, gate: Gate, worker: Any, process: Process) -> None:
        super().__init__(gate)
        self._worker, self._process = worker, process

    def admit(self, asked: Asked) -> None:
        """Wait for a slot, ask, and hand the task over."""
        if self._lull.holds(asked, partial(self.admit, asked)):
            return
        if self._gate.is_away:
            self._gate.ask(asked, self._late)
            self._gate.waits_on(asked)
            return
        slot = self._worker.pool._pool._putlock
        slot.acquire()
        slot.release()  # to be taken again at once by the pool: nobody else hands tasks to it
        if asked.is_withdrawn:
            return
        reply = Reply(lambda action: action(), partial(self._late, asked))
        self._gate.ask(asked, reply.give)
        answer = reply.wait(SLOT_SECONDS)
        if answer is not None:
            self._on_answer(asked, answer)
        else:
            self._gate.waits_on(asked)

    def _late(self, asked: Asked, answer: Answer) -> None:
        self._gate.loop.post(partial(self._on_answer, asked, answer))

    def _on_answer(self, asked: Asked, answer: Answer) -> None:
        if not isinstance(answer, Begun):
            self._gate.refuse(asked, answer)
        elif self._gate.begins(asked, answer.holding):
            self._process(asked.req)
            if asked.req._apply_result is None:
                asked.execution.not_begun()


class Reply:
    """An answer that a slot waits for, but not for long: later it goes another way."""

    def __init__(self, hand_over: Callable[[Callable[[], None]], None], late: Callable[[Any], None]) -> None:
        """`hand_over` calls from where an event of this slot may be set."""
        self._hand_over, self._late = hand_over, late
        self._event = threading.Event()  # green where the slot is
        self._lock = native.lock()
        self._answer: Any = None
        self._has_left = False

    def give(self, _asked: Asked, answer: Any) -> None:
        """Say the answer to the message, from any thread."""
        with self._lock:
            self._answer = answer
            has_left = self._has_left
        if has_left:
            self._late(answer)
        else:
            self._hand_over(self._event.set)

    def wait(self, seconds: float) -> Any:
        """The answer; None where it goes another way."""
        self._event.wait(seconds)
        with self._lock:
            if self._answer is None:
                self._has_left = True
            return self._answer


class InnerSlots(_FreeSlots):
    """threads, gevent, eventlet, solo: inside the slot the message asks, and then its body runs there."""

    def __init__(
        self,
        gate: Gate,
        pool: Any,
        hand_over: Callable[[Callable[[], None]], None],
        make_window: Callable[[Execution], Window],
        submit: Callable[[Callable[[], None]], None],
    ) -> None:
        """`submit` runs what hands a task to the pool, which may have to wait for a slot."""
        super().__init__(gate)
        self._pool = pool
        self._hand_over, self._make_window, self._submit = hand_over, make_window, submit

    def admit(self, asked: Asked) -> None:
        """Hand it to the pool; the rest follows there."""
        if self._lull.holds(asked, partial(self._submit, partial(self.admit, asked))):
            return
        try:
            Request.execute_using_pool(asked.req, _Inside(self._pool, partial(self._take, asked)))
        except TaskRevokedError:  # or expired; who is told of that says so of its run
            self._gate.forget(asked)

    def _take(self, asked: Asked, call: Call) -> Any:
        if not self._gate.is_away:
            return self._pool.apply_async(partial(self._enter, asked, call), **_PLAIN)
        self._gate.ask(asked, lambda asked, answer: self._late(asked, call, answer))
        self._gate.waits_on(asked)
        return None

    def _enter(self, asked: Asked, call: Call) -> None:
        if asked.is_withdrawn or is_stopping():  # a green consumer waited for this slot, and hears of it next
            return
        reply = Reply(self._hand_over, partial(self._late, asked, call))
        self._gate.ask(asked, reply.give)
        answer = reply.wait(SLOT_SECONDS)
        if answer is not None:
            self._on_answer(asked, call, answer)
        else:
            self._gate.loop.post(lambda: self._gate.waits_on(asked))

    def _late(self, asked: Asked, call: Call, answer: Answer) -> None:
        if not isinstance(answer, Begun):
            self._gate.loop.post(lambda: self._gate.refuse(asked, answer))
            return
        holding = answer.holding
        _later.after(SLOT_SECONDS, lambda: self._gate.loop.post(lambda: self._gate.unstart_late(asked, holding)))
        again = partial(self._pool.apply_async, partial(self._on_answer, asked, call, answer), **_PLAIN)
        self._gate.loop.post(lambda: self._submit(again))

    def _on_answer(self, asked: Asked, call: Call, answer: Answer) -> None:
        if not isinstance(answer, Begun):
            self._gate.loop.post(lambda: self._gate.refuse(asked, answer))
        elif self._gate.begins(asked, answer.holding):
            call.run(asked.execution, self._make_window(asked.execution))


_later = native.Later()


def _nothing(_result: Any) -> None:
    """The pool's own callback: what it would report is reported already."""


_PLAIN = {"args": (), "callback": _nothing, "timeout": 0}  # 0: none, not even the pool's own


class _Inside:
    """A pool for `execute_using_pool`: what it is handed is not run, but given to who runs it inside a slot."""

    def __init__(self, pool: Any, take: Callable[[Call], Any]) -> None:
        self._pool, self._take = pool, take

    def apply_async(self, target: Callable[..., Any], **options: Any) -> Any:
        """Take a slot, when it is time."""
        return self._take(Call(self._pool, target, options))
