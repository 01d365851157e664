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
    """The queue of a message that was published with these options; None where an exchange alone decides that."""
    exchange = options.get("exchange")
    exchange = getattr(exchange, "name", exchange)
    if not exchange:
        name: str | None = options.get("routing_key")
        return name
    if _is_delaying(str(exchange)):
        return queue_of(app, call)  # where it goes from there: the exchange is not the one that it was routed to
    bound = [queue for queue in options.get("declare") or () if getattr(queue.exchange, "name", None) == exchange]
    return bound[0].name if len(bound) == 1 else None
