"""A message of ours in the hands of a strategy of its task's own, which runs it unseen.

Its run begins before. It ends when the strategy acknowledges the message, or goes on as any other
where the strategy passes the message on to Celery.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from celery.exceptions import InvalidTaskError
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_sqlbeat import environment, events
from celery_sqlbeat.celery_bridge.consumer import RawMessage
from celery_sqlbeat.celery_bridge.event_loop import Loop
from celery_sqlbeat.celery_bridge.tasks import NO_REPORT, Report, text_of
from celery_sqlbeat.model.retries import classes_of
from celery_sqlbeat.worker.lease import RunLease
from celery_sqlbeat.worker.results import TaskResult
from celery_sqlbeat.worker.runtime import WorkerRuntime

_ON_MESSAGE = "sqlbeat_handed"


class StrategyMessage(RawMessage):
    """One message for a strategy, in the place of a request and of what tracks it."""

    def __init__(self, consumer: Any, message: Any, name: str, worker_runtime: WorkerRuntime, loop: Loop) -> None:
        super().__init__(consumer, message, str(message.headers.get("id")), name)
        self.req = self
        self.run_lease: RunLease | None = None
        self.ended: Callable[[bool], None] = lambda _was_passed_on: None
        """Called once, when the strategy is done with it."""
        self._worker_runtime, self._loop = worker_runtime, loop
        self._lock = environment.lock()
        self._is_over = self._was_passed_on = False
        self._said: dict[str, Callable[..., Any]] = {}

    def begin(self, run_lease: RunLease) -> None:
        """Note the lease of the run, which has begun."""
        self.run_lease = run_lease

    def hand_over(self, strategy: Callable[..., Any], body: Any, *rest: Any, **more: Any) -> None:
        """Give it to the strategy, and hear what that tells the broker."""
        message = self.message
        self._said = {name: getattr(message, name) for name in ("ack", "reject", "requeue")}
        message.ack = partial(self._hear, "ack", TaskResult.LEFT)
        message.reject = self._hear_rejected
        message.requeue = partial(self._hear, "requeue", TaskResult.REQUEUED)
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
            events.fault_caught(doing="run the strategy of a task", error=error, subject=self.name)
            self._fail(error)
            self.reject(requeue=False)

    def pass_on(self) -> RunLease | None:
        """Let go of a run that the strategy has passed on to Celery; None where it is over."""
        return self.run_lease if self._leave(was_passed_on=True) else None

    @property
    def is_let_go(self) -> bool:
        """Whether the strategy has ended its run; what it runs after that is its own affair."""
        return self._is_over and not self._was_passed_on

    def stop(self) -> None:
        """End the run: its connection or its worker has ended, and what still runs is unknown."""
        self._end(TaskResult.STOPPED)

    def _fail(self, error: BaseException) -> None:
        self._end(TaskResult.FAILURE, Report(text_of(error), errors=classes_of(error)))

    def _hear_rejected(self, requeue: bool = False) -> None:
        self._hear("reject", TaskResult.REQUEUED if requeue else TaskResult.REJECTED, requeue=requeue)

    def _hear(self, said: str, how: TaskResult, *args: Any, **options: Any) -> None:
        # The outcome first: a message that comes again meanwhile finds its run begun.
        say = partial(self._say, said, *args, **options)
        if not self._end(how, then=lambda _written: self._loop.post(say)) and not self.message.acknowledged:
            self._said[said](*args, **options)  # only the first counts, and a second one ends no worker

    def _say(self, said: str, *args: Any, **options: Any) -> None:
        try:
            if not self.message.acknowledged:
                self._said[said](*args, **options)
        except self.connection_errors as error:
            events.noted(topic=f"no {said} of message {self.id}, its connection has ended", text=error)

    def _end(self, how: TaskResult, told: Report = NO_REPORT, then: Callable[[bool], None] | None = None) -> bool:
        if not self._leave(was_passed_on=False) or self.run_lease is None:
            return False
        self._worker_runtime.finish(self.run_lease, how, told, then)
        return True

    def _leave(self, was_passed_on: bool) -> bool:
        with self._lock:
            was_over, self._is_over = self._is_over, True
            self._was_passed_on = self._was_passed_on or (was_passed_on and not was_over)
        if not was_over:
            self.ended(was_passed_on)
        return not was_over


def strategy_message_of(message: Any) -> StrategyMessage | None:
    """Return what is known of a message that was given to a strategy of its task's own."""
    handed: StrategyMessage | None = getattr(message, _ON_MESSAGE, None)
    return handed
