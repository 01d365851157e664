"""A message of ours in the hands of a strategy of its task's own, which runs it in a way that nobody else knows.

Its run has begun, under a lease. That ends when the strategy acknowledges the message; or it goes on as any other's,
where the strategy passes the message on to Celery.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from celery.exceptions import InvalidTaskError
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_sqlbeat.worker import native
from celery_sqlbeat.worker.endings import End
from celery_sqlbeat.worker.holding import Holding
from celery_sqlbeat.worker.loops import Loop
from celery_sqlbeat.worker.office import Office
from celery_sqlbeat.worker.reports import NO_REPORT, Report, text_of

logger = logging.getLogger(__name__)

_ON_MESSAGE = "sqlbeat_handed"


class Handed:
    """One message, where the gate expects one of Celery's requests, and what runs it."""

    def __init__(self, consumer: Any, message: Any, name: str, office: Office, loop: Loop) -> None:
        self.req = self
        self.consumer, self.message, self.name = consumer, message, name
        self.id = str(message.headers.get("id"))
        self.request_dict = message.headers
        self.connection_errors = consumer.connection_errors
        self.acknowledged = False
        self.holding: Holding | None = None
        self.ended: Callable[[bool], None] = lambda _was_passed_on: None
        """Called once, when nothing more is to be seen to here."""
        self._office, self._loop = office, loop
        self._lock = native.lock()
        self._is_over = self._was_passed_on = False
        self._said: dict[str, Callable[..., Any]] = {}

    # As the gate knows a request and its execution

    def begin(self, holding: Holding) -> None:
        """The run has begun."""
        self.holding = holding

    def acknowledge(self) -> None:
        """The message is dropped."""
        self.acknowledged = True
        self.message.ack_log_error(logger, self.connection_errors)

    def reject(self, requeue: bool) -> None:
        """The message goes back to the broker, or not."""
        if not self.acknowledged:
            self.acknowledged = True
            self.message.reject_log_error(logger, self.connection_errors, requeue)

    def send_event(self, kind: str, **fields: Any) -> None:
        """Tell those who listen to events."""
        dispatcher = self.consumer.event_dispatcher
        if dispatcher and dispatcher.enabled:
            dispatcher.send(kind, uuid=self.id, **fields)

    # In the strategy's hands

    def hand_over(self, strategy: Callable[..., Any], body: Any, *rest: Any, **more: Any) -> None:
        """Give it to the strategy, and hear what that says of it to the broker. Where the consumer is served."""
        message = self.message
        self._said = {name: getattr(message, name) for name in ("ack", "reject", "requeue")}
        message.ack = partial(self._hear, "ack", End.LEFT)
        message.reject = self._hear_rejected
        message.requeue = partial(self._hear, "requeue", End.REQUEUED)
        setattr(message, _ON_MESSAGE, self)
        try:
            strategy(message, body, *rest, **more)
        except (InvalidTaskError, ContentDisallowed) as error:
            self._fail(error)
            self.consumer.on_invalid_task(body, message, error)
        except DecodeError as error:
            self._fail(error)
            self.consumer.on_decode_error(message, error)
        except Exception as error:  # Celery's worker would end with it
            logger.exception("the strategy of task %s failed", self.name)
            self._fail(error)
            message.reject_log_error(logger, self.connection_errors)

    def pass_on(self) -> Holding | None:
        """The strategy has handed it on to Celery, which knows how it ends. None where it is over, or was before."""
        return self.holding if self._leave(was_passed_on=True) else None

    @property
    def is_let_go(self) -> bool:
        """Whether its run has ended here, by what the strategy said of it: what it runs now is its own affair."""
        return self._is_over and not self._was_passed_on

    def stop(self) -> None:
        """The connection has ended, and the message with it. What the strategy still does is not known."""
        self._end(End.STOPPED)

    def _fail(self, error: BaseException) -> None:
        self._end(End.FAILURE, Report(text_of(error)))

    def _hear_rejected(self, requeue: bool = False) -> None:
        self._hear("reject", End.REQUEUED if requeue else End.REJECTED, requeue=requeue)

    def _hear(self, said: str, how: End, *args: Any, **options: Any) -> None:
        # The outcome first: a message that comes again meanwhile finds its run begun.
        say = partial(self._say, said, *args, **options)
        if not self._end(how, then=lambda _written: self._loop.post(say)) and not self.message.acknowledged:
            self._said[said](*args, **options)  # else the first word counts, and a second one ends no worker

    def _say(self, said: str, *args: Any, **options: Any) -> None:
        try:
            if not self.message.acknowledged:
                self._said[said](*args, **options)
        except self.connection_errors as error:
            logger.info("message %s (task %s): no %s, its connection has ended: %s", self.id, self.name, said, error)

    def _end(self, how: End, told: Report = NO_REPORT, then: Callable[[bool], None] | None = None) -> bool:
        if not self._leave(was_passed_on=False) or self.holding is None:
            return False
        self._office.finish(self.holding, how, told.error, told.traceback, then)
        return True

    def _leave(self, was_passed_on: bool) -> bool:
        with self._lock:
            was_over, self._is_over = self._is_over, True
            self._was_passed_on = self._was_passed_on or (was_passed_on and not was_over)
        if not was_over:
            self.ended(was_passed_on)
        return not was_over


def handed_of(message: Any) -> Handed | None:
    """What is known of a message that was given to a strategy of its task's own."""
    found: Handed | None = getattr(message, _ON_MESSAGE, None)
    return found
