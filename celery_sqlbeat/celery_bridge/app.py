"""Read an app: its time zone, its rules, its broker, and where its router sends a message.

Opens no connection. A broker's fingerprint holds no credentials. One server has many names, so
hosts that differ do not prove that two brokers do; another kind, or another space on it, does.
"""

import hashlib
import os
import re
import socket
from collections.abc import Mapping
from datetime import timezone
from typing import Any, Protocol

from celery import current_app, current_task

from celery_sqlbeat import environment, events
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.schedule import zone_named


class Routed(Protocol):
    """A call that a router sends to a queue."""

    @property
    def task_name(self) -> str:
        """The name of the task."""

    @property
    def args(self) -> Any:
        """The positional arguments."""

    @property
    def kwargs(self) -> Any:
        """The named arguments."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of `apply_async`."""


_is_delaying = re.compile(r"(?:.*_)?celery_delayed_\d+").fullmatch
"""The names of the exchanges in which RabbitMQ delays messages with a countdown or an eta."""


def queue_of(app: Any, call: Routed) -> str | None:
    """Return the queue of a message; None where an exchange decides, or unknown."""
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
    """Return the queue of a published message; None where there are several, or unknown."""
    exchange = options.get("exchange")
    exchange = getattr(exchange, "name", exchange)
    if not exchange:
        name: str | None = options.get("routing_key")
        return name
    if _is_delaying(str(exchange)):
        return queue_of(app, call)  # the exchange is not the one that it was routed to
    declared: dict[str, Any] = {queue.name: queue for queue in options.get("declare") or ()}
    known = {**app.amqp.queues, **declared}
    reached = [name for name, queue in known.items() if _may_get(queue, exchange, options.get("routing_key") or "")]
    only: str | None = reached[0] if len(reached) == 1 else None
    return only if only in declared and not _copies(declared[only], exchange) else None


def _may_get(queue: Any, exchange: str, routing_key: str) -> bool:
    """Return whether a queue is bound so that it gets, or may get, a message with this key."""
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
    """Return whether each queue bound to this exchange gets a copy; others may bind theirs."""
    return any(
        bound.exchange is not None
        and bound.exchange.name == exchange
        and bound.exchange.type not in ("direct", "topic")
        for bound in (queue, *(queue.bindings or ()))
    )


def _is_topic(pattern: list[str], words: list[str]) -> bool:
    """Return whether AMQP's pattern matches: `*` is one word, `#` any number of words."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_is_topic(pattern[1:], words[at:]) for at in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _is_topic(pattern[1:], words[1:])


def configured_from(app: Any) -> Any:
    """Return the module or object that the app is configured from, or its name; None without."""
    return getattr(app, "_config_source", None)


_FOLDER = "zoneinfo/"


def app_zone(app: Any) -> str:
    """Return the time zone of an app, by a name that every host knows."""
    zone = app.timezone
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if isinstance(name, str):
        return name
    if zone == timezone.utc:
        return "UTC"
    for guess in (app.conf.timezone, *_local_names()):
        try:
            return zone_named(guess).key
        except FieldError:
            continue
    events.advice(
        topic="time zone",
        text="that of this host has no name that other hosts know: crontabs are read in UTC",
        remedy="set timezone in the configuration of the app",
    )
    return "UTC"


def _local_names() -> tuple[str, ...]:
    """Return this host's names of its zone: Celery's default where `enable_utc` is off."""
    return environment.variables().get("TZ", "").lstrip(":"), os.path.realpath("/etc/localtime").rpartition(_FOLDER)[2]


def running_task() -> Any:
    """Return the task whose body this thread runs; None outside of one."""
    return current_task if current_task and current_task.request.id else None


def running_as() -> str:
    """Say which host and process this is, and which task it runs."""
    name, task = f"{socket.gethostname()} pid {os.getpid()}", running_task()
    return name if task is None else f"{name}, task {task.name}[{task.request.id}]"


def app_in_use() -> Any:
    """Return the app of the running task, or else the current one."""
    task = running_task()
    return task.app if task is not None else current_app._get_current_object()  # type: ignore[attr-defined]


def rules_of(app: Any, settings: Settings) -> Rules:
    """Return the rules by which the rows of this app are read."""
    return Rules(
        settings.policies,
        app_zone(app),
        settings.lock_timeout,
        settings.max_retries,
        app.conf.beat_cron_starting_deadline,
        settings.allowed_tasks,
        settings.max_payload,
        settings.payload_key,
    )


LONGEST = 200  # characters, as wide as the column
_PORTS = {"amqp": 5672, "redis": 6379, "sentinel": 26379}
_SPACES = {"amqp": "/", "redis": "0", "sentinel": "0"}  # where a URL names none
_FAMILIES = {"amqps": "amqp", "pyamqp": "amqp", "librabbitmq": "amqp", "rediss": "redis"}


def fingerprint(connection: Any) -> str:
    """Return what a kombu connection leads to: `redis//db.example:6379/0`, `#` and key prefix."""
    from kombu.utils.url import parse_url  # late: comparing needs no kombu

    parts = [parse_url(url) for url in connection.alt] or [
        {"hostname": connection.hostname, "port": connection.port, "virtual_host": connection.virtual_host}
    ]
    family = _family(parts[0].get("transport") or str(connection.transport_cls))
    options = connection.transport_options or {}
    hosts = sorted({_host(part, family, options) for part in parts})
    space = _space(parts[0]["virtual_host"], family)
    prefix = options.get("global_keyprefix")
    tail = f"/{space}" + (f"#{prefix}" if prefix else "")
    whole = f"{family}//{','.join(hosts)}{tail}"
    if len(whole) <= LONGEST:
        return whole
    return f"{family}//{_digest(','.join(hosts))}{tail if len(tail) <= LONGEST // 2 else '/' + _digest(tail)}"


def differ_for_certain(broker: str, other: str) -> bool:
    """Return whether these are certainly two brokers: of two kinds, or two spaces on one."""
    return _kind_and_space(broker) != _kind_and_space(other)


def _family(transport: str) -> str:
    name = transport.lower().partition("+")[0]
    return _FAMILIES.get(name, name)


def _host(part: dict[str, Any], family: str, options: dict[str, Any]) -> str:
    if part["hostname"] and "://" in part["hostname"]:  # a socket's path, as kombu keeps it
        return "socket"
    if part["hostname"] is None:
        # A transport without a server has a folder, any other a default.
        folder = options.get("data_folder_out") or options.get("data_folder")
        if folder:
            return str(folder)
    port = part["port"] or _PORTS.get(family)
    host = part["hostname"] or "localhost"
    return f"{host}:{port}" if port else str(host)


def _space(virtual_host: str | None, family: str) -> str:
    default = _SPACES.get(family, "")
    return (virtual_host or "").lstrip("/") or default


def _kind_and_space(text: str) -> tuple[str, str]:
    family, _, rest = text.partition("//")
    return family, rest.partition("/")[2]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
