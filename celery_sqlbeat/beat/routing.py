"""Where the messages of a job go, by the options of the task and the job, and by the app's router."""

import re
from collections.abc import Mapping
from typing import Any, Protocol


class Routed(Protocol):
    """What a router is asked about."""

    @property
    def task_name(self) -> str: ...
    @property
    def args(self) -> Any: ...
    @property
    def kwargs(self) -> Any: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


_is_delaying = re.compile(r"(?:.*_)?celery_delayed_\d+").fullmatch
"""With quorum queues Celery lets RabbitMQ keep what has a countdown or an eta: so its exchanges are called."""


def queue_of(app: Any, call: Routed) -> str | None:
    """The queue that a message goes to; None where that is decided elsewhere, or unknown."""
    try:
        task = app.tasks.get(call.task_name)
        options = {**(task._get_exec_options() if task else {}), **call.options}
        exchange = options.get("exchange")
        routed = app.amqp.router.route(options, call.task_name, call.args, call.kwargs, task)
    except Exception:  # the tasks are the app's own, and the router may be anybody's
        return None
    queue = routed.get("queue")
    name: str | None = getattr(queue, "name", queue)
    return None if exchange else name


def published_to(app: Any, call: Routed, options: Mapping[str, Any]) -> str | None:
    """The queue of a message that was published with these options; None where it is not one, or not known."""
    exchange = options.get("exchange")
    exchange = getattr(exchange, "name", exchange)
    if not exchange:
        name: str | None = options.get("routing_key")
        return name
    if _is_delaying(str(exchange)):
        return queue_of(app, call)  # where it goes from there: the exchange is not the one that it was routed to
    declared: dict[str, Any] = {queue.name: queue for queue in options.get("declare") or ()}
    known = {**app.amqp.queues, **declared}
    reached = [name for name, queue in known.items() if _may_get(queue, exchange, options.get("routing_key") or "")]
    only: str | None = reached[0] if len(reached) == 1 else None
    return only if only in declared and not _copies(declared[only], exchange) else None


def _may_get(queue: Any, exchange: str, routing_key: str) -> bool:
    """Whether a queue is bound so that it gets, or may get, a message with this key."""
    for bound in (queue, *(queue.bindings or ())):
        to = bound.exchange
        if to is None or to.name != exchange:
            continue
        pattern = bound.routing_key or ""
        if to.type not in ("direct", "topic") or pattern == routing_key:
            return True
        if to.type == "topic" and _is_topic(pattern.split("."), routing_key.split(".")):
            return True
    return False


def _copies(queue: Any, exchange: str) -> bool:
    """Whether anybody who binds a queue to this exchange gets a copy: who else has done so is not known."""
    return any(
        bound.exchange is not None
        and bound.exchange.name == exchange
        and bound.exchange.type not in ("direct", "topic")
        for bound in (queue, *(queue.bindings or ()))
    )


def _is_topic(pattern: list[str], words: list[str]) -> bool:
    """As AMQP has it: `*` is one word, `#` any number of words."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_is_topic(pattern[1:], words[at:]) for at in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _is_topic(pattern[1:], words[1:])
