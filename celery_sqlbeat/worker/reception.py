"""Where each task message comes first: on its way to the strategy of its task, before rate limits and the pool.

Copies of what waits here are dropped. What goes to a strategy of the task's own begins here, since such a strategy may
never lead to where other messages get their leases.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import FunctionType
from typing import Any

from celery.worker import strategy as stock

from celery_sqlbeat.worker.answers import Answer, Begun
from celery_sqlbeat.worker.gate import Asked, Gate
from celery_sqlbeat.worker.handed import Handed
from celery_sqlbeat.worker.header import HEADER, Copied, Header, Malformed, Newer, read
from celery_sqlbeat.worker.loops import Loop
from celery_sqlbeat.worker.office import Office
from celery_sqlbeat.worker.received import Received
from celery_sqlbeat.worker.secrecy import shown
from celery_sqlbeat.worker.strangers import Strangers

logger = logging.getLogger(__name__)

Strategy = Callable[..., Any]


class Reception:
    """Of one worker. All of it where the consumer is served, unless it says otherwise."""

    def __init__(self, office: Office, gate: Gate, loop: Loop, received: Received) -> None:
        self._office, self._gate, self._loop = office, gate, loop
        self._received = received
        self._own: set[str] = set()
        self._passing_on: set[str] = set()
        self._keeping: set[str] = set()
        self._handed: set[Handed] = set()
        self.strangers = Strangers()

    def connected(self, consumer: Any) -> None:
        """The consumer consumes, for the first time or again. Celery asks for its strategies anew each time."""
        self._consumer = consumer
        if not isinstance(consumer.strategies, _Strategies):
            consumer.strategies = _Strategies(consumer.strategies, self._receiving)

    def leave(self, is_closing: bool) -> None:
        """The connection has ended. What a strategy still has the broker sends once more, to whomever it likes."""
        self._received.leave()
        if not is_closing:
            self.stop()

    def stop(self) -> None:
        """Whatever is in a strategy's hands is not known to run: at the end of the worker, after its pool's."""
        for handed in list(self._handed):
            handed.stop()

    @property
    def unleasable(self) -> list[str]:
        """The tasks whose runs end here without anybody hearing how. From any thread."""
        return sorted(self._own - (self._passing_on - self._keeping))

    def _receiving(self, name: str, strategy: Strategy) -> Strategy:
        """The same strategy, behind the reception."""
        is_own = not _is_stock(strategy)
        (self._own.add if is_own else self._own.discard)(name)

        def receive(message: Any, body: Any, *rest: Any, **more: Any) -> Any:
            found = _found(message, body)
            if isinstance(found, Header) and not (found.forgotten and self._office.is_for_anybody(found)):
                if not self._received.came(found, message) and self._office.is_own(found):
                    return self._drop(message, name)
                if is_own:
                    return self._begin(found, message, name, partial(strategy, **more), body, *rest)
            elif found is None:
                self.strangers.saw(name, message.headers)
            elif is_own and isinstance(found, Malformed | Newer):
                return self._gate.header_of(self._handing(message, name))  # which sees to it
            return strategy(message, body, *rest, **more)

        return receive

    def _handing(self, message: Any, name: str) -> Handed:
        return Handed(self._consumer, message, name, self._office, self._loop)

    def _drop(self, message: Any, name: str) -> None:
        copy = self._handing(message, name)
        reason = "this worker has received its run already"
        logger.info("message %s (task %s) is dropped: %s", copy.id, name, reason)
        copy.acknowledge()
        copy.send_event("task-rejected", name=name, requeue=False, reason=reason)

    def _begin(self, header: Header, message: Any, name: str, strategy: Strategy, body: Any, *rest: Any) -> None:
        handed: Any = self._handing(message, name)
        asked = Asked(handed, header)

        def on_answer(answer: Answer) -> None:
            if not isinstance(answer, Begun):
                self._gate.refuse(asked, answer)
            elif self._gate.begins(asked, answer.holding):
                handed.ended = partial(self._ended, handed)
                self._handed.add(handed)
                handed.hand_over(strategy, body, *rest)

        if self._gate.receive(asked):
            self._gate.ask(asked, lambda _asked, answer: self._loop.post(partial(on_answer, answer)))

    def _ended(self, handed: Handed, was_passed_on: bool) -> None:
        self._handed.discard(handed)
        seen = self._passing_on if was_passed_on else self._keeping
        if handed.name not in seen:
            seen.add(handed.name)
            self._office.queues_changed()  # beats are told soon


class _Strategies(dict[str, Strategy]):
    """The strategies of a consumer, each behind the reception from its assignment on."""

    def __init__(self, known: Mapping[str, Strategy], behind: Callable[[str, Strategy], Strategy]) -> None:
        super().__init__({name: behind(name, strategy) for name, strategy in known.items()})
        self._behind = behind

    def __setitem__(self, name: str, strategy: Strategy) -> None:
        super().__setitem__(name, self._behind(name, strategy))

    def update(self, *args: Any, **more: Any) -> None:
        """Assign each of them."""
        given: Iterable[tuple[str, Strategy]] = dict(*args, **more).items()
        for name, strategy in given:
            self[name] = strategy


def _is_stock(strategy: Strategy) -> bool:
    """Whether it is what Celery's own makes: by its code, which a wrapper has not, whatever it is called."""
    return type(strategy) is FunctionType and strategy.__code__ in stock.default.__code__.co_consts


def _found(message: Any, body: Any) -> Header | Copied | Malformed | Newer | None:
    """The header of a message of ours; None where it has none."""
    headers = message.headers
    raw = headers.get(HEADER) if isinstance(headers, dict) else None
    if raw is None:
        return None
    # In the older protocol the body says what the headers say now.
    request = headers if "id" in headers else {**(body if isinstance(body, dict) else {}), **headers}
    return read(shown(raw), request)
