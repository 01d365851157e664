"""Check calls of tasks: whether a message can be made of one, and whether Celery alone sends it.

Before a message is due, the app is asked, and nothing is sent. Later who raised an error tells:
until kombu turns to the broker, nothing but the message can be wrong. What a tool or shop has put
in the place of Celery's functions is called once a message.
"""

import traceback
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

from celery.beat import SchedulingError
from celery.exceptions import QueueNotFound
from kombu import compression, serialization
from kombu.exceptions import OperationalError, SerializerNotInstalled

from celery_sqlbeat.config.validation import shown
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.model.definition import Call

# The arguments of an entry are evaluated here, by functions of the shop.
_ARGUMENTS = {("celery.beat", "_evaluate_entry_args"), ("celery.beat", "_evaluate_entry_kwargs")}
# These turn a message into bytes, in some transports after kombu has turned to the broker.
_WRITERS = ("json", "kombu.utils.json", "kombu.serialization", "kombu.compression", "amqp.serialization")
_RESULTS = "celery.backends."  # Celery subscribes to the result before it sends
_WIRES = ("kombu.", "amqp.", "redis.")  # of a task that sends over a connection of its own


class NoSuchMessage(ValueError):
    """The broker's protocol has no form for a message."""


def cause_of(error: BaseException) -> BaseException:
    """Return the error without those that Celery's scheduler and kombu put around it."""
    inside = error.__cause__ or error.__context__
    return cause_of(inside) if type(error) in (SchedulingError, OperationalError) and inside is not None else error


def is_in_the_message(error: BaseException, has_turned: bool, away: tuple[type[BaseException], ...]) -> bool:
    """Return whether this message can never be sent; `has_turned`: it got as far as the broker.

    `away` are the errors by which the broker's client says that it is away.
    """
    cause = cause_of(error)
    if isinstance(cause, MemoryError | NoSuchMessage):
        return isinstance(cause, NoSuchMessage)
    raisers = {*_raisers(error), *_raisers(cause)}
    modules = {module for module, _ in raisers}
    if raisers & _ARGUMENTS or any(module in _WRITERS or module.startswith("json.") for module in modules):
        return True
    if has_turned or any(module.startswith(_RESULTS) for module in modules):
        return False
    return not (isinstance(cause, (OperationalError, *away)) and any(module.startswith(_WIRES) for module in modules))


def _raisers(error: BaseException) -> Iterator[tuple[str, str]]:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        yield str(frame.f_globals.get("__name__")), frame.f_code.co_name


_encode: Any = serialization.dumps  # kombu leaves these without types
_registry: Any = serialization.registry  # type: ignore[attr-defined]
_find_compressor: Any = compression.get_encoder
_compressors: Any = compression.encoders


def registered_tasks(app: Any, task_name: str) -> Any:
    """Return the task of this name; None where this app does not have it."""
    try:
        return app.tasks.get(task_name)
    except RuntimeError:  # an app that is not finalized yet
        return None


def check_call(app: Any, call: Call, with_arguments: bool = True) -> None:
    """Raise a FieldError for the first field of a call that no message can be made of.

    `with_arguments`: they are known, and are not left to the code.
    """
    task = registered_tasks(app, call.task_name)
    options = {**(task._get_exec_options() if task else {}), **call.options}
    try:
        if with_arguments:
            check_arguments(task, call)
        _queue(app, task, call, options)
        _serializer(app, call, options, with_arguments)
        _compression(app, call, options)
    except FieldError as error:
        raise (error.hidden() if call.is_hidden else error) from None


def check_arguments(task: Any, call: Call) -> None:
    """Raise a FieldError where a task, if it is known, does not take the arguments of a call."""
    if task is None or not task.typing or task.__v2_compat__ or not _sends_what_it_is_given(task):
        return
    check = task.__header__
    try:
        check(*call.args, **call.kwargs)
    except TypeError as error:
        says = f"task {call.task_name} does not take these arguments ({error}): write those of its signature"
        if "keyword argument" in str(error) and call.kwargs:
            raise FieldError("Kwargs", dict(call.kwargs), says) from None
        raise FieldError("Args", list(call.args), says) from None


def _sends_what_it_is_given(task: Any) -> bool:
    """Return whether its `apply_async` is Celery's, wrapped or not; a shop's may add arguments."""
    owner = next(kind for kind in type(task).mro() if "apply_async" in vars(kind))
    return owner.__module__.startswith("celery.")


def _queue(app: Any, task: Any, call: Call, options: Mapping[str, Any]) -> None:
    try:
        app.amqp.router.route(dict(options), call.task_name, call.args, call.kwargs, task)
    except QueueNotFound:
        names = ", ".join(sorted(map(str, app.amqp.queues))) or "none"
        remedy = f"no such queue, and task_create_missing_queues is off: name one of task_queues ({names}), or add it"
        if call.options.get("queue"):
            raise FieldError("Options.queue", shown(call.options["queue"]), remedy) from None
        raise FieldError("TaskName", call.task_name, f"it is routed to a queue that is not there; {remedy}") from None
    except Exception as error:  # whatever a router of the shop's own raises
        says = f"it cannot be routed ({type(error).__name__}: {error}): correct task_routes"
        raise FieldError("TaskName", call.task_name, says) from error


def _serializer(app: Any, call: Call, options: Mapping[str, Any], with_arguments: bool) -> None:
    name = options.get("serializer") or app.conf.task_serializer
    body: Any = (list(call.args), dict(call.kwargs), {}) if with_arguments else ([], {}, {})
    try:
        _encode(body, serializer=name)
    except SerializerNotInstalled:
        known = ", ".join(sorted(_registry.name_to_type))
        raise _of("serializer", name, call, f"there is no such serializer: name one of {known}") from None
    except Exception as error:
        says = f"serializer {name} cannot write them ({error}): write others, or name another serializer"
        raise FieldError("Args", list(call.args), says) from None


def _compression(app: Any, call: Call, options: Mapping[str, Any]) -> None:
    name = options.get("compression") or app.conf.task_compression
    try:
        if name:
            _find_compressor(name)
    except KeyError:
        known = ", ".join(sorted(_compressors()))
        raise _of("compression", name, call, f"there is no such compression: name one of {known}") from None


def _of(name: str, value: object, call: Call, remedy: str) -> FieldError:
    """Return the error about an option, which the job, its task or the app may set."""
    if call.options.get(name):
        return FieldError(f"Options.{name}", value, remedy)
    return FieldError("TaskName", call.task_name, f"the {name} of this task or app is {value!r}; {remedy}")


OURS = ("celery.", "kombu.", "amqp.", "celery_sqlbeat.")
_SENDING = ("apply_entry", "apply_async", "send_task")


def is_unpatched(owner: object, *names: str) -> bool:
    """Return whether these functions of an object are as Celery wrote them.

    A wrapper made with `functools.wraps` copies name and module, but not the globals. A proxy as of
    wrapt answers every question as the wrapped function does: only its type tells.
    """
    return all(_is_stock(getattr(owner, name, None)) for name in names)


def _is_stock(function: Any) -> bool:
    if type(function) is MethodType:
        function = function.__func__
    return type(function) is FunctionType and str(function.__globals__.get("__name__")).startswith(OURS)


def is_stock_scheduler(apply_entry: Any) -> bool:
    """Return whether no tool watches each entry that is sent."""
    scheduler = getattr(apply_entry, "__self__", None)
    return (
        scheduler is not None
        and is_unpatched(scheduler, *_SENDING)
        and all(map(_sends_as_stock, type(scheduler).mro()))
    )


def _sends_as_stock(kind: type) -> bool:
    """Return whether what a class itself defines is stock; an override may hide a wrapper."""
    own = vars(kind)
    return all(_is_stock(own[name]) for name in _SENDING if name in own)


def is_stock_app(app: Any, producer: Any) -> bool:
    """Return whether everything after `apply_async` is Celery's own."""
    return (
        not app.conf.task_always_eager
        and is_unpatched(app, "send_task")
        and is_unpatched(app.amqp, "send_task_message", "create_task_message")
        and is_unpatched(type(producer), "publish", "_publish")
    )


def is_stock_task(app: Any, task: Any) -> bool:
    """Return whether a task, if the app has it, needs nothing that only its `apply_async` does."""
    return task is None or (
        task.app is app
        and is_unpatched(task, "apply_async", "shadow_name", "_get_exec_options")
        and not task.__v2_compat__
        and getattr(task, "_dump_pydantic_arguments", None) is None
        and not (task.soft_time_limit and task.time_limit and task.soft_time_limit > task.time_limit)
    )
