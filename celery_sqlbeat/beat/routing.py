"""Where the messages of a job go, by the options of the task and the job, and by the app's router."""

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
