"""The slots of prefork beside an event loop: a message asks with its slot in hand, and ahead where slots come fast.

While they come fast nobody keeps one for the time of the question, either: the next one is there when the answer is.
"""

import contextlib
import time
from collections import deque
from functools import partial
from typing import Any

from celery_sqlbeat.worker.acks import Acks
from celery_sqlbeat.worker.answers import Answer, Begun
from celery_sqlbeat.worker.foresight import Foresight
from celery_sqlbeat.worker.gate import Asked, Gate
from celery_sqlbeat.worker.holding import Holding
from celery_sqlbeat.worker.lull import Lull
from celery_sqlbeat.worker.slots import SLOT_SECONDS, Process

_SHORT = 8  # slots that come in a moment: tasks of a few milliseconds, or many processes
_EXTRA = 32  # messages; about what such tasks work off while one batch of leases is on its way
_LOOK_SECONDS = 1.0  # how soon it is noticed that tasks are short no longer


class LoopSlots:
    """The message has a slot, and the loop goes on until the answer comes. All of it where the consumer is served."""

    def __init__(self, gate: Gate, worker: Any, process: Process) -> None:
        self._gate, self._worker, self._process = gate, worker, process
        self._acks = Acks(worker.timer.call_after)
        self._foresight = Foresight()
        self._lull = Lull(gate)
        self._foreseen: deque[Asked] = deque()  # without a slot, and not asked yet
        self._ahead: dict[Asked, Answer | None] = {}  # without a slot, and asked; with the answer
        self._passing: set[Asked] = set()  # asked, and has let its slot go: the next one will do
        self._waiting: dict[Asked, float] = {}  # asked, with the slot in hand; the oldest first
        self._is_watching = False
        self._reads_ahead = False
        self._may_read_ahead = worker.prefetch_multiplier != 1  # who sets 1 wants no message to wait here

    def foresee(self, asked: Asked) -> None:
        """The message waits for its slot, behind those that came before."""
        if self._worker.semaphore.value <= 0:
            self._foreseen.append(asked)
            self._ask_ahead()

    def admit(self, asked: Asked) -> None:
        """The message has its slot, and keeps it for a while."""
        if asked.is_withdrawn:
            self.release()
            return
        if asked in self._ahead:
            answer = self._ahead.pop(asked)
            self._slot_came()
            if answer is not None:
                self._with_slot(asked, answer)
                return
            self._gate.hurry(asked, keeps_slot=True)
        else:
            if self._foreseen:
                with contextlib.suppress(ValueError):  # it had its slot at once
                    self._foreseen.remove(asked)  # the first one, unless a pool has an order of its own
            if self._lull.holds(asked, partial(self._again, asked)):
                self._let_others_soon(asked)
                return
            passes = self._comes_soon()
            self._slot_came()
            self._ask(asked, ahead=passes)
            if passes:
                self._passing.add(asked)
                self._gate.hurry(asked, keeps_slot=False)
                self.release()
                return
        if self._gate.is_away:
            self._gate.waits_on(asked)
            self._let_others_soon(asked)
            return
        self._waiting[asked] = time.monotonic()
        self._watch()

    def leave(self, is_closing: bool) -> None:
        """The connection has ended: whoever had a slot, or waited for one, has lost it."""
        self._acks.leave(is_closing)
        self._lull.leave()
        self._waiting.clear()
        self._foreseen.clear()
        self._ahead.clear()
        self._passing.clear()
        self._is_watching = self._reads_ahead = False

    def release(self) -> None:
        """Give a slot back."""
        self._worker._quick_release()

    def _again(self, asked: Asked) -> None:
        self.foresee(asked)
        self._worker._quick_acquire(self.admit, asked)

    def _let_others_soon(self, asked: Asked) -> None:
        # Not at once: with the slot comes the next message, and each would come within the call for the one before.
        self._gate.loop.post(partial(self._let_others, asked))

    def _let_others(self, asked: Asked) -> None:
        if not asked.is_cut:
            self.release()

    def _comes_soon(self) -> bool:
        """Whether slots come so fast that a message which lets its own go will have another as soon as it needs one."""
        soon = self._foresight.soon()
        return soon >= _SHORT and len(self._ahead) + len(self._passing) < soon

    def _slot_came(self) -> None:
        self._foresight.slot_came(bool(self._foreseen or self._ahead or self._passing))
        self._ask_ahead()

    def _ask_ahead(self) -> None:
        if self._foreseen:
            soon = self._foresight.soon()
            while self._foreseen and len(self._ahead) + len(self._passing) < soon:
                asked = self._foreseen.popleft()
                self._ahead[asked] = None
                self._ask(asked, ahead=True)
            self._read_ahead(soon)

    def _read_ahead(self, soon: int) -> None:
        """While tasks are that short, let the broker send some more messages than Celery would have it."""
        if soon >= _SHORT and self._may_read_ahead and not self._reads_ahead:
            self._reads_ahead = True
            self._gate.read_ahead(_EXTRA)
            self._worker.timer.call_after(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        if self._reads_ahead and self._foresight.soon() < _SHORT:
            self._reads_ahead = False
            self._gate.read_ahead(-_EXTRA)
        elif self._reads_ahead:
            self._worker.timer.call_after(_LOOK_SECONDS, self._look)

    def _ask(self, asked: Asked, ahead: bool) -> None:
        self._gate.ask(asked, self._answered, ahead)

    def _answered(self, asked: Asked, answer: Answer) -> None:
        self._gate.loop.post(partial(self._on_answer, asked, answer))

    def _on_answer(self, asked: Asked, answer: Answer) -> None:
        if asked in self._ahead:
            self._ahead[asked] = answer
            if not isinstance(answer, Begun):
                self._gate.refuse(asked, answer)
            return
        had_slot = self._waiting.pop(asked, None) is not None
        passed = asked in self._passing
        self._passing.discard(asked)
        if asked.is_cut:
            if isinstance(answer, Begun):
                self._gate.begins(asked, answer.holding)
        elif had_slot:
            if not isinstance(answer, Begun):
                self._gate.refuse(asked, answer)
            self._with_slot(asked, answer)
        elif not isinstance(answer, Begun):
            self._gate.refuse(asked, answer)
        else:
            if not passed:  # else the keeper gives the lease back by then
                self._worker.timer.call_after(SLOT_SECONDS, self._gate.unstart_late, (asked, answer.holding))
            self._worker._quick_acquire(self._run, asked, answer.holding)

    def _with_slot(self, asked: Asked, answer: Answer) -> None:
        if isinstance(answer, Begun):
            self._run(asked, answer.holding)
        else:
            self.release()

    def _run(self, asked: Asked, holding: Holding) -> None:
        if not self._gate.begins(asked, holding):
            if not asked.is_cut:
                self.release()
            return
        self._acks.gather(asked.req.message)
        try:
            self._process(asked.req)
        except BaseException:
            asked.execution.not_begun()
            raise
        if asked.req._apply_result is None:  # the pool takes nothing any more, or the task was revoked
            asked.execution.not_begun()

    def _watch(self) -> None:
        if self._waiting and not self._is_watching:
            self._is_watching = True
            self._worker.timer.call_after(SLOT_SECONDS / 2, self._let_go)

    def _let_go(self) -> None:
        """No slot waits for long while the database is away: messages that need none go on."""
        self._is_watching = False
        oldest = time.monotonic() - SLOT_SECONDS
        for asked in [asked for asked, since in self._waiting.items() if since < oldest]:
            del self._waiting[asked]
            self._gate.waits_on(asked)
            self.release()
        self._watch()
