"""What would keep a call from ever being published, found before it is due. Asks the app alone, and sends nothing."""

from collections.abc import Mapping
from typing import Any

from celery.exceptions import QueueNotFound
from kombu import compression, serialization
from kombu.exceptions import SerializerNotInstalled

from celery_sqlbeat.beat.routing import Routed
from celery_sqlbeat.checks import shown
from celery_sqlbeat.errors import FieldError

_encode: Any = serialization.dumps  # kombu leaves it without types
_find_compressor: Any = compression.get_encoder
_compressors: Any = compression.encoders


def registered(app: Any, task_name: str) -> Any:
    """The task of this name; None where this app does not have it, and others may."""
    try:
        return app.tasks.get(task_name)
    except RuntimeError:  # an app that is not to be finalized yet
        return None


def examine(app: Any, call: Routed, with_arguments: bool = True) -> None:
    """Raise a FieldError for the first field of a call that no message can be made of.

    `with_arguments`: they are known, and are not left to the code.
    """
    task = registered(app, call.task_name)
    if with_arguments:
        _arguments(task, call)
    options = {**(task._get_exec_options() if task else {}), **call.options}
    _queue(app, task, call, options)
    _serializer(app, call, options, with_arguments)
    _compression(app, call, options)


def _arguments(task: Any, call: Routed) -> None:
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
    """Whether its `apply_async` is Celery's own, whoever wraps that: one of the shop's may add arguments."""
    owner = next(kind for kind in type(task).mro() if "apply_async" in vars(kind))
    return owner.__module__.startswith("celery.")


def _queue(app: Any, task: Any, call: Routed, options: Mapping[str, Any]) -> None:
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


def _serializer(app: Any, call: Routed, options: Mapping[str, Any], with_arguments: bool) -> None:
    name = options.get("serializer") or app.conf.task_serializer
    body: Any = (list(call.args), dict(call.kwargs), {}) if with_arguments else ([], {}, {})
    try:
        _encode(body, serializer=name)
    except SerializerNotInstalled:
        known = ", ".join(sorted(serialization.registry.name_to_type))
        raise _of("serializer", name, call, f"there is no such serializer: name one of {known}") from None
    except Exception as error:
        says = f"serializer {name} cannot write them ({error}): write others, or name another serializer"
        raise FieldError("Args", list(call.args), says) from None


def _compression(app: Any, call: Routed, options: Mapping[str, Any]) -> None:
    name = options.get("compression") or app.conf.task_compression
    try:
        if name:
            _find_compressor(name)
    except KeyError:
        known = ", ".join(sorted(_compressors()))
        raise _of("compression", name, call, f"there is no such compression: name one of {known}") from None


def _of(name: str, value: object, call: Routed, remedy: str) -> FieldError:
    """The error about an option, whether the job, its task or the app says so."""
    if call.options.get(name):
        return FieldError(f"Options.{name}", value, remedy)
    return FieldError("TaskName", call.task_name, f"the {name} of this task or app is {value!r}; {remedy}")
