"""A worker's test of its own hooks, on Celery's live objects, before it registers.

Beats lease to registered workers; one that cannot start such a run must never register.
"""

from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

from celery.worker import strategy
from celery.worker.request import Request

from celery_sqlbeat import environment
from celery_sqlbeat.celery_bridge.consumer import WatchedStrategies, is_stock
from celery_sqlbeat.celery_bridge.pools import kind_of
from celery_sqlbeat.celery_bridge.requests import is_with_pool, let_go, watch
from celery_sqlbeat.errors import SqlbeatError

_NAME = "celery_sqlbeat.self_test"


class HookMissing(SqlbeatError):
    """Celery does not call a hook of this package."""


def prove(worker: Any, consumer: Any, receive: Callable[[Any], Any], admit: Callable[[Any], Any]) -> None:
    """Raise HookMissing unless messages come to the hooks, and acknowledgements wait."""
    _requests_come(worker, consumer, receive, admit)
    _messages_come(consumer)
    _strategies_are_known(consumer)
    _capacity_is_there(worker, consumer)
    request, acknowledged = _request_of(worker.app)
    _body_is_reached(request)
    _acknowledgement_waits(request, acknowledged)


def _prove(is_so: bool, what: str) -> None:
    if not is_so:
        raise HookMissing(f"self-test of the worker: {what}")


def _requests_come(worker: Any, consumer: Any, receive: Callable[[Any], Any], admit: Callable[[Any], Any]) -> None:
    _prove(worker._process_task == admit, "WorkController._process_task is not replaced")
    _prove(worker._process_task_sem == receive, "WorkController._process_task_sem is not replaced")
    given = consumer.on_task_request
    _prove(given in (admit, receive), f"Celery gives its requests to {given!r}")


def _messages_come(consumer: Any) -> None:
    """Give the consumer's own handler a message, which must reach the watched strategies."""
    strategies = consumer.strategies
    _prove(isinstance(strategies, WatchedStrategies), "Consumer.strategies is not replaced")
    seen: list[Any] = []
    message = _message()
    dict.__setitem__(strategies, _NAME, lambda message, *_: seen.append(message))
    try:
        consumer.create_task_handler()(message)
    finally:
        dict.pop(strategies, _NAME)
    _prove(seen == [message], "Celery does not look for the strategy of a message in Consumer.strategies")


def _strategies_are_known(consumer: Any) -> None:
    if type(strategy.default) is not FunctionType or strategy.default.__globals__ is not vars(strategy):
        return  # a tool has wrapped it
    made = strategy.default(_some_task(consumer.app), consumer.app, consumer)
    _prove(is_stock(made), "Celery's own strategy is not known as such")


def _capacity_is_there(worker: Any, consumer: Any) -> None:
    kind = kind_of(worker)
    if kind == "prefork":
        _prove(isinstance(worker.semaphore.value, int), "WorkController.semaphore has no value")
        _prove(callable(worker._quick_acquire) and callable(worker._quick_release), "the pool has no capacity")
        _prove(callable(worker.timer.call_after), "the worker's timer cannot call")
    elif kind == "blocking prefork":
        _prove(callable(worker.pool._pool._putlock.acquire), "the pool has no capacity")
    _prove(callable(consumer.call_soon) and consumer.task_consumer is not None, "the consumer cannot be called")
    _prove(callable(consumer.qos.increment_eventually), "the prefetch cannot be raised")


def _request_of(app: Any) -> tuple[Any, list[Any]]:
    """Return a request that nobody has sent, and what it says to its broker."""

    class Probe(Request):
        """A class of its own, since watching a request marks its class."""

    acknowledged: list[Any] = []
    request = Probe(_message(), on_ack=lambda *given: acknowledged.append(given), app=app, task=_some_task(app))
    return request, acknowledged


def _body_is_reached(request: Any) -> None:
    """Hand the request to a pool that runs nothing."""
    handed: list[dict[str, Any]] = []
    result = _Result()

    def apply_async(_target: Any, args: Any = (), **options: Any) -> Any:
        handed.append({"args": args, **options})
        return result

    Request.execute_using_pool(request, SimpleNamespace(apply_async=apply_async))  # type: ignore[arg-type]  # a stand-in
    _prove(len(handed) == 1, "Request.execute_using_pool hands nothing to the pool")
    options = handed[0]
    for name in ("accept_callback", "timeout_callback", "callback", "error_callback"):
        _prove(callable(options.get(name)), f"Request.execute_using_pool gives the pool no {name}")
    args = options["args"]
    is_as_known = len(args) > 2 and args[1] == request.id and args[2] is request.request_dict
    _prove(is_as_known, "Request.execute_using_pool gives the pool other arguments")
    is_kept = is_with_pool(request) and request._apply_result() is result
    _prove(is_kept, "Request._apply_result is not what the pool has returned")


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing, and say nothing to any broker."""


class _Result:
    """What a pool returns; a request keeps a weak reference to it."""


class _Waiting:
    """An observer whose outcome is not written yet."""

    may_acknowledge = False

    def __init__(self) -> None:
        self.said: list[Callable[[], Any]] = []

    def acknowledge_later(self, say: Callable[[], Any]) -> None:
        self.said.append(say)


def _acknowledgement_waits(request: Any, acknowledged: list[Any]) -> None:
    observer: Any = _Waiting()
    watch(request, observer, _nothing)
    request.acknowledge()
    _prove(not acknowledged and len(observer.said) == 1, "Request.acknowledge does not wait for the outcome")
    let_go(request)
    observer.said[0]()
    _prove(len(acknowledged) == 1 and request.acknowledged, "Request.acknowledge says nothing to the broker")
    request.acknowledge()
    _prove(len(acknowledged) == 1, "Request.acknowledge acknowledges twice")


def _some_task(app: Any) -> Any:
    return app.tasks["celery.accumulate"]  # of Celery itself, so that each app has it


def _message() -> Any:
    said = dict.fromkeys(("ack", "reject", "requeue", "ack_log_error", "reject_log_error"), _nothing)
    return SimpleNamespace(
        headers={"id": environment.THIS_MACHINE.ids.random_id(), "task": _NAME},
        body=b"[[], {}, {}]",
        payload=((), {}, {}),
        content_type="application/json",
        content_encoding="utf-8",
        delivery_info={},
        properties={},
        acknowledged=False,
        **said,
    )
