"""Whether Celery's own functions are still in place, or some tool or shop has put its own around or over them."""

from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

OURS = ("celery.", "kombu.", "amqp.", "celery_sqlbeat.")
_SENDING = ("apply_entry", "apply_async", "send_task")


def untouched(owner: object, *names: str) -> bool:
    """Whether these functions of an object are as Celery wrote them.

    A wrapper made with `functools.wraps` copies the name and the module of what it wraps, but not its globals. A proxy
    as of wrapt answers every question as what it wraps would: only its type tells.
    """
    return all(_is_stock(getattr(owner, name, None)) for name in names)


def _is_stock(function: Any) -> bool:
    if type(function) is MethodType:
        function = function.__func__
    return type(function) is FunctionType and str(function.__globals__.get("__name__")).startswith(OURS)


def is_stock_scheduler(apply_entry: Any) -> bool:
    """Whether nobody wants to see each entry that is sent."""
    scheduler = getattr(apply_entry, "__self__", None)
    return (
        scheduler is not None and untouched(scheduler, *_SENDING) and all(map(_sends_as_stock, type(scheduler).mro()))
    )


def _sends_as_stock(kind: type) -> bool:
    """Whether what a class defines itself is stock: a method that calls its base's may hide a wrapper there."""
    own = vars(kind)
    return all(_is_stock(own[name]) for name in _SENDING if name in own)


def is_stock_app(app: Any, producer: Any) -> bool:
    """Whether what follows `apply_async` is Celery's alone."""
    return (
        not app.conf.task_always_eager
        and untouched(app, "send_task")
        and untouched(app.amqp, "send_task_message", "create_task_message")
        and untouched(type(producer), "publish", "_publish")
    )


def is_stock_task(app: Any, task: Any) -> bool:
    """Whether a task that the app knows, if it does, needs nothing that only its `apply_async` gives."""
    return task is None or (
        task.app is app
        and untouched(task, "apply_async", "shadow_name", "_get_exec_options")
        and not task.__v2_compat__
        and getattr(task, "_dump_pydantic_arguments", None) is None
        and not (task.soft_time_limit and task.time_limit and task.soft_time_limit > task.time_limit)
    )


class Quiet:
    """The app as `send_task` sees it, without the result backend.

    Nobody here reads results; Celery would subscribe to each, and wait for a backend that is away.
    """

    backend = SimpleNamespace(on_task_call=lambda producer, task_id: None)

    def __init__(self, app: Any) -> None:
        self._app = app

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)
