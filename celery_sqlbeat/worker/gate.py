"""Where our messages wait for their lease before their body runs, and what becomes of those that do not get one.

The pool's way to give a slot is in slots.py; the answers come from the office. Nothing here blocks.
"""

import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from celery.worker import state

from celery_sqlbeat.ids import Ids
from celery_sqlbeat.model import StartRequest
from celery_sqlbeat.worker import native
from celery_sqlbeat.worker.answers import Answer, Away, Begun, Foreign, Stale
from celery_sqlbeat.worker.endings import End
from celery_sqlbeat.worker.execution import Execution
from celery_sqlbeat.worker.handed import handed_of
from celery_sqlbeat.worker.header import HEADER, Header, Malformed, Newer, read
from celery_sqlbeat.worker.holding import Holding
from celery_sqlbeat.worker.loops import Loop
from celery_sqlbeat.worker.office import Office
from celery_sqlbeat.worker.received import Received
from celery_sqlbeat.worker.reports import NO_REPORT, Report
from celery_sqlbeat.worker.running import is_begun
from celery_sqlbeat.worker.secrecy import shown

logger = logging.getLogger(__name__)

RETURN_SECONDS = 5.0  # how long a message is kept that others must run, so that it does not come back at once
_AWAY_SECONDS = 1.0  # the same for one that could not be asked about: the database may be back at any moment
_RETURNED_A_SECOND = 20  # how many at most, so that a whole queue of them neither floods the log nor turns in circles
_MOST_EXTRA = 100  # messages that leave their place in the prefetch to others; more of them hold up the queue
_MOST_OF_OTHERS = 5000  # the same for messages that only others can run: whatever waits behind them is to be run here
_chance = random.random
_later = native.Later()


class Asked:
    """One message, from the moment that it could run until its body does, or until it is gone."""

    def __init__(self, execution: Execution, header: Header) -> None:
        self.execution = execution
        self.header = header
        self.req = execution.req
        self.request = StartRequest(header.run, header.claim, header.fence, _start_id(), header.celery_retries)
        self.was_asked = False
        self.is_withdrawn = False
        """Whether the body must not run any more."""
        self.is_passed_on = False
        """Whether its run had begun before, for a strategy of its task's own that has handed it on."""
        self.is_cut = False
        """Whether that is because the connection ended, and with it the slot."""


Answered = Callable[[Asked, Answer], None]


class Gate:
    """All our messages in this worker that have not begun. `consumer` is set while there is a connection."""

    def __init__(self, office: Office, loop: Loop, received: Received) -> None:
        self.office, self.loop = office, loop
        self._received = received
        self.is_closing = False
        self._consumer: Any = None
        self._lock = native.lock()
        self._open: set[Asked] = set()
        self._kept: set[Any] = set()  # requests to be returned in a while
        self._raised: set[Any] = set()  # requests that have raised the prefetch while they wait

    def connected(self, consumer: Any) -> None:
        """The consumer consumes."""
        self._consumer = consumer

    def header_of(self, req: Any) -> Header | None:
        """The header of a message that has one; None where it is none that a run may begin with, which is seen to."""
        found = read(shown(req.request_dict[HEADER]), req.request_dict)
        if isinstance(found, Header):
            return found
        if isinstance(found, Newer):
            logger.error(
                "message %s (task %s) has a sqlbeat header of version %s, which this worker does not know: "
                "it goes back to the broker; upgrade celery-sqlbeat here",
                *_named(req),
                found.version,
            )
            self._keep(req, _MOST_OF_OTHERS)
        elif isinstance(found, Malformed):
            logger.error(
                "message %s (task %s) is dropped, its sqlbeat header is forged or damaged: %s",
                *_named(req),
                found.reason,
            )
            self._drop(req, "malformed header")
        return None

    def receive(self, asked: Asked) -> bool:
        """A message has come, and waits for its slot. False where none will have one any more: it goes back at once."""
        with self._lock:
            if not self.is_closing:
                self._open.add(asked)
                return True
        _return_now(asked.req)
        return False

    def ask(self, asked: Asked, answered: Answered, ahead: bool = False) -> None:
        """Ask for the lease; `answered` is called from any thread, and not if the message is withdrawn before.

        `ahead`: it has no slot yet, and will have one in a moment.
        """
        with self._lock:
            if asked.is_withdrawn:
                return
            asked.was_asked = True
        handed = handed_of(asked.req.message)
        holding = handed.pass_on() if handed is not None else None
        if holding is not None:
            asked.is_passed_on = True
            self._hear(asked, answered, Begun(holding))
            return
        self.office.ask(asked.header, asked.request, partial(self._hear, asked, answered), ahead)

    def _hear(self, asked: Asked, answered: Answered, answer: Answer) -> None:
        if not asked.is_withdrawn:
            answered(asked, answer)
        elif isinstance(answer, Begun):
            self.office.unstart(answer.holding)

    def read_ahead(self, messages: int) -> None:
        """Let the broker send so many messages more, or less again. Where the consumer is served."""
        if self._consumer is None or not self._consumer.qos.value:  # 0: it sends all that it has
            return
        qos, least = self._consumer.qos, self._consumer.initial_prefetch_count
        if messages > 0:
            qos.increment_eventually(messages)
        elif qos.value > least:  # Celery itself sets it anew after a lost connection
            qos.decrement_eventually(min(-messages, qos.value - least))

    def hurry(self, asked: Asked, keeps_slot: bool) -> None:
        """What was asked ahead could begin now, but for the answer."""
        self.office.hurry(keeps_slot)

    @property
    def is_away(self) -> bool:
        """Whether no answer is to be expected soon: a message keeps no slot then that others could have."""
        return self.office.is_away

    def waits_on(self, asked: Asked) -> None:
        """The message waits for its answer without a slot; others may pass it. Where the consumer is served."""
        if asked in self._open:
            self._raise(asked.req)

    def goes_on(self, asked: Asked) -> None:
        """The message waits as all others do again. Where the consumer is served."""
        self._lower(asked.req)

    def is_open(self, asked: Asked) -> bool:
        """Whether the message still waits here: it has not begun, and nobody has seen to it."""
        return asked in self._open

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do this in a while where the consumer is served."""
        _later.after(seconds, partial(self.loop.post, action))

    def begins(self, asked: Asked, holding: Holding) -> bool:
        """Whether the body may begin, now. If not, the message is dropped; its slot is the caller's to give back."""
        with self._lock:
            self._open.discard(asked)
            withdrawn = asked.is_withdrawn
        if asked.req in self._raised:
            self.loop.post(lambda: self._lower(asked.req))
        if withdrawn:
            self.office.unstart(holding)
            return False
        if not asked.is_passed_on and not holding.take():
            self._drop(asked.req, "the lease was given back before the body could begin")
            return False
        self._received.begun(asked.header)
        asked.execution.begin(holding)
        return True

    def refuse(self, asked: Asked, answer: Answer) -> None:
        """The body does not run; the slot is the caller's to give back. Where the consumer is served."""
        with self._lock:
            self._open.discard(asked)
        if asked.is_withdrawn:
            return
        self._lower(asked.req)
        if isinstance(answer, Stale):
            level = logging.WARNING if answer.ends else logging.INFO
            logger.log(level, "message %s (task %s) is dropped: %s", *_named(asked.req), answer.reason)
            if answer.expired:
                # As Celery does by the worker's clock: a beat has done it by the server's, and a little sooner.
                asked.req._announce_revoked("expired", False, None, True)
            else:
                self._drop(asked.req, answer.reason)
        elif isinstance(answer, Away):
            logger.warning("message %s (task %s) goes back to the broker: %s", *_named(asked.req), answer.reason)
            self._keep(asked.req, seconds=_AWAY_SECONDS)
        elif isinstance(answer, Foreign):
            logger.error("message %s (task %s) goes back to the broker: %s", *_named(asked.req), answer.reason)
            self._keep(asked.req, _MOST_OF_OTHERS)

    def forget(self, asked: Asked) -> None:
        """Somebody else has seen to the message."""
        with self._lock:
            self._open.discard(asked)

    def give_back(self, req: Any, is_of_others: bool = False) -> None:
        """The message could not be asked about, or is not for us: back to the broker. Where the consumer is served."""
        self._keep(req, _MOST_OF_OTHERS if is_of_others else _MOST_EXTRA)

    def unstart_late(self, asked: Asked, holding: Holding) -> None:
        """No slot came in time for a run that has begun in the database: others may have one."""
        with self._lock:
            if asked not in self._open:
                return
            self._open.discard(asked)
            asked.is_withdrawn = True
        self._lower(asked.req)
        self.office.unstart(holding)
        self._drop(asked.req, "no slot of the pool came in time")

    def leave(self, is_closing: bool) -> None:
        """The connection ends: what has not begun goes back to the broker, at once, and never begins here."""
        with self._lock:
            self.is_closing = self.is_closing or is_closing
            waiting, self._open = self._open, set()
            for asked in waiting:
                asked.is_withdrawn = asked.is_cut = True
        for asked in waiting:
            if asked.was_asked:
                self.office.withdraw(asked.request)
        kept, self._kept = self._kept, set()
        self._raised.clear()
        if is_closing:
            for req in [*(asked.req for asked in waiting), *kept]:
                _return_now(req)

    def bury(self, context: Any, expired: bool) -> None:
        """A message was revoked, or too old, before it came here: nothing else would ever say so of its run."""
        found = read(shown(context.get(HEADER)), {"id": context.id, "retries": context.retries})
        if not isinstance(found, Header) or is_begun(context):
            return
        if not (found.forgotten and self.office.is_for_anybody(found)):
            self.end_unbegun(found, End.EXPIRED if expired else End.REVOKED)

    def end_unbegun(
        self,
        header: Header,
        how: End,
        told: Report = NO_REPORT,
        heard: Callable[[Answer], None] = lambda _answer: None,
    ) -> None:
        """End the run of a message that comes to no slot; `heard` is called from any thread with what it was."""

        def answered(answer: Answer) -> None:
            if isinstance(answer, Begun) and answer.holding.take():
                self.office.finish(answer.holding, how, told.error, told.traceback)
            heard(answer)

        request = StartRequest(header.run, header.claim, header.fence, _start_id(), header.celery_retries)
        self.office.ask(header, request, answered)

    def _drop(self, req: Any, reason: str) -> None:
        req.acknowledge()
        state.task_ready(req)
        req.send_event("task-rejected", name=req.name, requeue=False, reason=reason)

    def _keep(self, req: Any, most: int = _MOST_EXTRA, seconds: float = RETURN_SECONDS) -> None:
        """Return it to the broker in a while. Where the consumer is served."""
        state.task_ready(req)
        consumer = self._consumer
        if consumer is None or self.is_closing:
            _return_now(req)
            return
        self._kept.add(req)
        self._raise(req, most)
        seconds = max(seconds, len(self._kept) / _RETURNED_A_SECOND)
        consumer.timer.call_after(seconds * (0.8 + 0.4 * _chance()), self._return, (req,))

    def _return(self, req: Any) -> None:
        if req not in self._kept:
            return  # the connection has ended since
        self._kept.discard(req)
        self._lower(req)
        req.reject(requeue=True)

    def _raise(self, req: Any, most: int = _MOST_EXTRA) -> None:
        if self._consumer is not None and len(self._raised) < most and req not in self._raised:
            self._raised.add(req)
            self._consumer.qos.increment_eventually()

    def _lower(self, req: Any) -> None:
        if req in self._raised:
            self._raised.discard(req)
            self._consumer.qos.decrement_eventually()


def _return_now(req: Any) -> None:
    # Not by req.reject, which only asks the event loop to do so, and at the end of a worker that comes much later.
    if not req.acknowledged:
        req.message.reject_log_error(logger, req.connection_errors, True)
        req.acknowledged = True
        req.send_event("task-rejected", requeue=True)
    state.task_ready(req)


def _named(req: Any) -> tuple[str, str]:
    return req.id, req.name


_IDS_AT_ONCE = 256  # to ask the system for randomness costs more than the rest of an id
_ids = Ids()
_start_ids: list[str] = []


def _start_id() -> str:
    """A random id for each delivery of a message."""
    while True:
        try:
            return _start_ids.pop()
        except IndexError:
            _start_ids.extend(_ids.claim_ids(_IDS_AT_ONCE))
