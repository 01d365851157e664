"""Where each task message comes first: before its strategy, its rate limit and the pool.

Copies of what this worker holds are dropped. What goes to a strategy of the task's own begins here,
since it may never come to admission. What Celery refuses, and would drop for good, ends its run
here: unread, its attempt fails; with a task unknown here, its slot goes to a worker that knows it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from celery_sqlbeat import environment, events
from celery_sqlbeat.celery_bridge.consumer import (
    RawMessage,
    Refusal,
    Strategy,
    decide_refusals,
    is_stock,
    watch_strategies,
)
from celery_sqlbeat.celery_bridge.event_loop import Loop
from celery_sqlbeat.celery_bridge.message_header import HEADER, Header, Malformed, Newer, find, note, read, shown
from celery_sqlbeat.celery_bridge.tasks import NO_REPORT, Report, text_of
from celery_sqlbeat.model.nodes import Stranger
from celery_sqlbeat.worker.admission import RETURNED, Admission, PendingMessage
from celery_sqlbeat.worker.lease import StartAnswer, Started, StoreUnavailable, WrongStore
from celery_sqlbeat.worker.lease.heartbeats import WaitingRuns
from celery_sqlbeat.worker.results import TaskResult
from celery_sqlbeat.worker.runtime import WorkerRuntime
from celery_sqlbeat.worker.task.own_strategy import StrategyMessage

_told: set[str] = set()  # tasks, each of which is told of once


class UnreadMessage(RawMessage):
    """A message that Celery refuses."""

    def send_event(self, kind: str, **fields: Any) -> None:
        """Send none: monitors were not told that it came."""


def ask_before_refusing(consumer: Any, admission: Admission, loop: Loop) -> None:
    """Have this consumer refuse no message of ours before it is known whose it is."""
    decide_refusals(consumer, partial(_is_decided, consumer, admission, loop))


def _is_decided(consumer: Any, admission: Admission, loop: Loop, refusal: Refusal) -> bool:
    """Return whether a refused message is ended or returned here; Celery drops it if not."""
    message, headers = refusal.message, refusal.message.headers
    if not isinstance(headers, dict) or HEADER not in headers:
        return False
    request = _request_of(message, headers)
    header = read(shown(headers[HEADER]), request)
    if not isinstance(header, Header | Newer):
        return False
    if isinstance(header, Header) and header.forgotten and admission.worker_runtime.is_for_anybody(header):
        return False
    task = request.get("task")
    unread = UnreadMessage(consumer, message, str(request.get("id")), str(task))
    is_unknown = refusal.is_unknown or (task is not None and task not in consumer.strategies)

    def return_message(reason: str, is_of_others: bool = True) -> None:
        if is_of_others:
            events.message_refused(message_id=unread.id, task_name=unread.name, effect=RETURNED, reason=reason)
        else:
            events.message_returned(message_id=unread.id, task_name=unread.name, reason=reason)
        admission.return_message(unread, is_of_others)

    def heard(answer: StartAnswer) -> None:
        if isinstance(answer, WrongStore | StoreUnavailable):
            loop.post(partial(return_message, answer.reason, isinstance(answer, WrongStore)))
        else:  # its run has ended, or was not this message's to run
            loop.post(unread.acknowledge if is_unknown else refusal.refuse)

    if isinstance(header, Newer):
        return_message(f"its sqlbeat header is of version {header.version}; upgrade celery-sqlbeat here")
    elif is_unknown:
        _tell_unknown(unread.name)
        admission.end_unbegun(header, TaskResult.UNKNOWN_TASK, NO_REPORT, heard)
    else:
        admission.end_unbegun(header, TaskResult.FAILURE, Report(text_of(refusal.error)), heard)
    return True


def _request_of(message: Any, headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the id, task and retries of a message; protocol 1 has them in the body."""
    if "id" in headers:
        return headers
    try:
        payload = message.payload
    except Exception:  # it is refused for that
        payload = None
    if isinstance(payload, Mapping):
        return payload
    own = headers[HEADER]
    task = own.get("task") if isinstance(own, Mapping) else None
    return {"id": (message.properties or {}).get("correlation_id"), "task": task}


def _tell_unknown(task: str) -> None:
    if task not in _told:
        _told.add(task)
        events.task_unknown(
            task_name=task,
            effect="it is not registered in this worker: its slots go on to workers that know it, nothing is counted",
            remedy="give all workers of a queue the same tasks",
        )


_BEATS, _NAMES = "celery_beat_task", "periodic_task_name"  # headers of Celery's own beat and of django-celery-beat
_MOST = 20  # remembered entries; with so many the pattern is clear


class Strangers:
    """The other schedulers whose messages a worker receives.

    `saw` runs where the consumer is served.
    """

    def __init__(self, clock: Callable[[], float] = environment.monotonic) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, str | None], tuple[int, float, str]] = {}

    def saw(self, task: str, headers: Any) -> None:
        """Note a message without a claim if a beat has sent it.

        Nearly all of them come from programs.
        """
        if type(headers) is not dict or (_BEATS not in headers and _NAMES not in headers) or HEADER in headers:
            return
        name = headers.get(_NAMES)
        key = task, name if isinstance(name, str) else None
        times = self._seen.pop(key, (0, 0.0, ""))[0]
        # Without Celery's own header it may be a single run that somebody asked for in an admin
        # page.
        self._seen[key] = times + (2 if headers.get(_BEATS) else 1), self._clock(), str(headers.get("origin") or "")
        if len(self._seen) > _MOST:
            del self._seen[next(iter(self._seen))]  # the one that was seen last the longest ago

    @property
    def told(self) -> list[Stranger]:
        """The schedulers that have sent more than one message could be by hand. From any thread."""
        now = self._clock()
        return [
            Stranger(task, name, origin, round(now - at, 1))
            for (task, name), (times, at, origin) in list(self._seen.items())
            if times > 1
        ]


class StrategyHook:
    """What stands before the strategies of one worker. Where the consumer is served."""

    def __init__(self, worker_runtime: WorkerRuntime, admission: Admission, loop: Loop, received: WaitingRuns) -> None:
        self._worker_runtime, self._admission, self._loop = worker_runtime, admission, loop
        self._received = received
        self._own: set[str] = set()
        self._passing_on: set[str] = set()
        self._keeping: set[str] = set()
        self._handed: set[StrategyMessage] = set()
        self.strangers = Strangers()

    def connected(self, consumer: Any) -> None:
        """Stand before the strategies of a consumer that consumes, for the first time or again."""
        self._consumer = consumer
        watch_strategies(consumer, self._before)

    def leave(self, is_closing: bool) -> None:
        """Forget what came: the connection has ended, and the broker sends it once more."""
        self._received.leave()
        if not is_closing:
            self.stop()

    def stop(self) -> None:
        """End the runs of strategies; at the end of the worker, after its pool's."""
        for handed in list(self._handed):
            handed.stop()

    @property
    def unleasable(self) -> list[str]:
        """The tasks whose runs end without anybody hearing how. From any thread."""
        return sorted(self._own - (self._passing_on - self._keeping))

    def _before(self, name: str, strategy: Strategy) -> Strategy:
        is_own = not is_stock(strategy)
        (self._own.add if is_own else self._own.discard)(name)

        def receive(message: Any, body: Any, *rest: Any, **more: Any) -> Any:
            header = find(message, body)
            if header is not None and not is_own:  # a strategy of the task's own may make other requests of it
                note(message, header)
            if isinstance(header, Header) and not (header.forgotten and self._worker_runtime.is_for_anybody(header)):
                if not self._received.came(header, message) and self._worker_runtime.is_own(header):
                    return self._drop(message, name)
                if is_own:
                    return self._begin(header, message, name, partial(strategy, **more), body, *rest)
            elif header is None:
                self.strangers.saw(name, message.headers)
            elif is_own and isinstance(header, Malformed | Newer):
                return self._admission.refuse_header(self._handing(message, name), header)
            return strategy(message, body, *rest, **more)

        return receive

    def _handing(self, message: Any, name: str) -> StrategyMessage:
        return StrategyMessage(self._consumer, message, name, self._worker_runtime, self._loop)

    def _drop(self, message: Any, name: str) -> None:
        copy = self._handing(message, name)
        reason = "this worker has received its run already"
        events.start_rejected(message_id=copy.id, task_name=name, reason=reason, ends_slot=False)
        copy.acknowledge()
        copy.send_event("task-rejected", name=name, requeue=False, reason=reason)

    def _begin(self, header: Header, message: Any, name: str, strategy: Strategy, body: Any, *rest: Any) -> None:
        handed: Any = self._handing(message, name)
        pending = PendingMessage(handed, header)

        def on_answer(answer: StartAnswer) -> None:
            if not isinstance(answer, Started):
                self._admission.refuse(pending, answer)
            elif self._admission.begins(pending, answer.run_lease):
                handed.ended = partial(self._ended, handed)
                self._handed.add(handed)
                handed.hand_over(strategy, body, *rest)

        if self._admission.receive(pending):
            self._admission.ask(pending, lambda _pending, answer: self._loop.post(partial(on_answer, answer)))

    def _ended(self, handed: StrategyMessage, was_passed_on: bool) -> None:
        self._handed.discard(handed)
        seen = self._passing_on if was_passed_on else self._keeping
        if handed.name not in seen:
            seen.add(handed.name)
            self._worker_runtime.queues_changed()  # beats are told soon
