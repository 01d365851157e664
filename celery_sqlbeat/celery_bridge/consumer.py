"""Celery's worker and its consumer: where messages and requests pass, and what it is asked."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

from celery import bootsteps
from celery.worker import control, state
from celery.worker import strategy as stock
from celery.worker.request import Request
from kombu.common import ignore_errors

from celery_sqlbeat.celery_bridge.message_header import hide_from_all, is_hidden
from celery_sqlbeat.events.emitter import logger

Strategy = Callable[..., Any]
Behind = Callable[[str, Strategy], Strategy]
"""Returns what is called instead of the strategy of the task of this name."""

_HIDES = "sqlbeat_hides"
_REFUSALS = {"on_unknown_task": 1, "on_invalid_task": 1, "on_decode_error": 0}
"""Methods of a consumer that refuse a message, and where they take it; the error comes next."""


def take_requests(
    worker: Any, receive: Callable[[Any], Any], admit: Callable[[Any], Any]
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Have requests given to `receive` when they could run, to `admit` when the pool has capacity.

    Returns Celery's own functions: what waits for capacity, and what hands over to the pool.
    """
    wait, process = worker._process_task_sem, worker._process_task
    worker._process_task_sem, worker._process_task = receive, admit
    return wait, process


def hide_arguments() -> None:
    """Let `inspect` show no arguments of a sensitive job, of no request that waits or runs here."""
    kind: Any = Request
    if not hasattr(kind.info, _HIDES):
        kind.info = _hiding(kind.info)


def _hiding(show: Callable[..., Any]) -> Callable[..., Any]:
    def info(req: Any, safe: bool = False) -> Any:
        return show(req, safe or is_hidden(req.request_dict))

    setattr(info, _HIDES, True)
    return info


class WatchedStrategies(dict[str, Strategy]):
    """The strategies of a consumer; each that is assigned goes `behind` ours."""

    def __init__(self, known: Mapping[str, Strategy], behind: Behind) -> None:
        super().__init__({name: behind(name, strategy) for name, strategy in known.items()})
        self._behind = behind

    def __setitem__(self, name: str, strategy: Strategy) -> None:
        super().__setitem__(name, self._behind(name, strategy))

    def update(self, *args: Any, **more: Any) -> None:
        """Assign each of them."""
        given: Iterable[tuple[str, Strategy]] = dict(*args, **more).items()
        for name, strategy in given:
            self[name] = strategy


def watch_strategies(consumer: Any, behind: Behind) -> None:
    """Put ours before each strategy of a consumer; each connection has new ones."""
    if not isinstance(consumer.strategies, WatchedStrategies):
        consumer.strategies = WatchedStrategies(consumer.strategies, behind)


def is_stock(strategy: Strategy) -> bool:
    """Return whether Celery's own code made this strategy; a wrapper around it has other code."""
    return type(strategy) is FunctionType and strategy.__code__ in stock.default.__code__.co_consts


class Refusal(NamedTuple):
    """A message that Celery refuses, since it does not know its task or cannot read it."""

    message: Any
    error: BaseException
    is_unknown: bool
    """Whether its task is unknown here."""
    refuse: Callable[[], Any]
    """What Celery would do: drop the message and log the error."""


def decide_refusals(consumer: Any, is_decided: Callable[[Refusal], bool]) -> None:
    """Ask before the consumer refuses a message; it does so where `is_decided` returns False."""
    for name, place in _REFUSALS.items():
        setattr(consumer, name, _asking(name, getattr(consumer, name), place, is_decided))


def _asking(
    name: str, refuse: Callable[..., Any], place: int, is_decided: Callable[[Refusal], bool]
) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        message, error = args[place], args[place + 1]
        refusal = Refusal(message, error, name == "on_unknown_task", partial(_handling, error, refuse, *args))
        return None if is_decided(refusal) else refuse(*args)

    return call


def _handling(error: BaseException, refuse: Callable[..., Any], *args: Any) -> None:
    try:
        raise error  # Celery logs the error that is being handled
    except type(error):
        refuse(*args)


class RawMessage:
    """A message that did not become one of Celery's requests, with what is asked of those."""

    def __init__(self, consumer: Any, message: Any, message_id: str, name: str) -> None:
        self.consumer, self.message = consumer, message
        self.id, self.name = message_id, name
        self.request_dict = message.headers
        self.connection_errors = consumer.connection_errors
        self.acknowledged = False

    def acknowledge(self) -> None:
        """Acknowledge the message."""
        if not self.acknowledged:
            self.acknowledged = True
            self.message.ack_log_error(logger, self.connection_errors)

    def reject(self, requeue: bool) -> None:
        """Reject the message, and give it back to the broker if `requeue`."""
        if not self.acknowledged:
            self.acknowledged = True
            self.message.reject_log_error(logger, self.connection_errors, requeue)

    def send_event(self, kind: str, **fields: Any) -> None:
        """Send an event to Celery's monitors."""
        dispatcher = self.consumer.event_dispatcher
        if dispatcher and dispatcher.enabled:
            dispatcher.send(kind, uuid=self.id, **fields)


def prepare(consumer: Any, queues_changed: Callable[[], None]) -> None:
    """Hide claims from all who print messages, and tell of queues that come and go; once each."""
    if hasattr(consumer, "_sqlbeat_sees_queues"):
        return
    consumer._sqlbeat_sees_queues = True
    hide_from_all(consumer)
    consumer.task_consumer.on_decode_error = consumer.on_decode_error  # made before ours was there
    for name in ("add_task_queue", "cancel_task_queue"):
        setattr(consumer, name, _telling(getattr(consumer, name), queues_changed))


def _telling(original: Callable[..., Any], told: Callable[[], None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            told()

    return call


def register_command(command: Callable[..., Any], name: str, **args: type) -> None:
    """Register a remote control for workers, with its arguments and their types."""
    control.control_command(name=name, args=list(args.items()))(command)


def raise_prefetch(consumer: Any, messages: int = 1) -> None:
    """Let the broker send this many messages more."""
    consumer.qos.increment_eventually(messages)


def lower_prefetch(consumer: Any, messages: int = 1) -> None:
    """Let the broker send this many messages less."""
    consumer.qos.decrement_eventually(messages)


def read_ahead(consumer: Any, messages: int) -> None:
    """Do either; never to less than Celery asks for, nor where the broker sends all that it has."""
    qos = consumer.qos
    spare = qos.value - consumer.initial_prefetch_count  # Celery sets it anew after a lost connection
    if qos.value and messages > 0:
        qos.increment_eventually(messages)
    elif qos.value and spare > 0:
        qos.decrement_eventually(min(-messages, spare))


def call_after(consumer: Any, seconds: float, action: Callable[..., None], *args: Any) -> None:
    """Call this in so many seconds, where the consumer is served."""
    consumer.timer.call_after(seconds, action, args)


def consumed_queues(queues: Any) -> list[str]:
    """Return the names of those of an app's queues that its worker consumes."""
    return [queue.name for queue in queues.consume_from.values()]


def is_closing(consumer: Any) -> bool:
    """Return whether the consumer ends with its worker, and not by a lost connection."""
    return bool(consumer.blueprint.state != bootsteps.RUN)  # type: ignore[attr-defined]  # not in its stubs


def stop_consuming(consumer: Any) -> None:
    """Take no more messages, so that none comes back here that goes to the broker now."""
    if consumer.task_consumer is not None:
        ignore_errors(consumer, consumer.task_consumer.cancel)


def is_stopping() -> bool:
    """Return whether this worker has been told to end."""
    told: tuple[Any, ...] = (state.should_stop, state.should_terminate)
    return any(each is not None and each is not False for each in told)
