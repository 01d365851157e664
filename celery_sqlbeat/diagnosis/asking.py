"""Asks the app, the broker and the workers, each in a bounded time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from celery.beat import BeatLazyFunc

from celery_sqlbeat.beat.brokers import unreachable
from celery_sqlbeat.beat.entries import CodeSchedule, read_entries
from celery_sqlbeat.brokerage import fingerprint
from celery_sqlbeat.config import Settings
from celery_sqlbeat.definition import Call
from celery_sqlbeat.diagnosis.facts import Code, Wire
from celery_sqlbeat.diagnosis.reading import refusal_of
from celery_sqlbeat.policy import policy_for
from celery_sqlbeat.roster import call_the_roll

T = TypeVar("T")

KOMBU_VISIBILITY = 3600.0  # seconds, where nobody sets it
_WITH_VISIBILITY = ("redis", "rediss", "sentinel")


def ask_code(app: Any, settings: Settings) -> Code:
    """What the app defines, once it has imported its tasks. Raises what the user's modules raise."""
    app.loader.import_default_modules()
    app.finalize()
    schedule = dict(app.conf.beat_schedule or {})
    code = read_entries(app, schedule, settings.release, settings.policies)
    policies = {name: policy_for(name, settings.policies) for name in code.entries}
    refusals = dict(_refusals(app, code))
    tasks, problems = frozenset(app.tasks), tuple(code.problems)
    return Code(tasks, policies, problems, code.owner, refusals, code.with_task_id())


def _refusals(app: Any, code: CodeSchedule) -> Iterator[tuple[str, str]]:
    for name, one in code.entries.items():
        entry = one.entry
        args, kwargs = entry.args or (), entry.kwargs or {}
        if one.definition.code_key is None or not isinstance(args, (list, tuple)):
            continue
        if not any(isinstance(value, BeatLazyFunc) for value in (*args, *kwargs.values())):
            call = Call(entry.task, args, kwargs, entry.options or {})
            refusal = refusal_of(app, call, with_arguments=True)
            if refusal is not None:
                yield name, refusal


def ask_broker(app: Any, seconds: float) -> Wire:
    """Who the broker is, once it has answered; BrokerAway where it does not, or nobody can speak to it."""
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=seconds)
            transport = str(connection.get_transport_cls().driver_type)
            options = connection.transport_options or {}
            found = fingerprint(connection)
    except Exception as error:  # kombu hands on what each transport's client raises
        said = error.args[0] if isinstance(error, KeyError) and error.args else error  # which would quote its text
        raise unreachable(app, " ".join(str(said).split()) or type(error).__name__) from error
    visibility = None
    if transport in _WITH_VISIBILITY:
        visibility = float(options.get("visibility_timeout") or KOMBU_VISIBILITY)
    return Wire(transport, found, visibility, None, None)


def ask_workers(app: Any, wire: Wire, seconds: float, names_too: bool) -> Wire:
    """Who consumes what, and with `names_too` which tasks they have. Raises what the transport raises."""
    roll = call_the_roll(app, seconds)
    tasks = None
    if names_too and roll:
        registered = app.control.inspect(timeout=seconds).registered() or {}
        tasks = frozenset(str(task).split(" ")[0] for each in registered.values() for task in each)
    return Wire(wire.transport, wire.fingerprint, wire.visibility_timeout, tuple(roll), tasks)


def within(seconds: float, question: Callable[[], T]) -> T:
    """The answer to a question, or TimeoutError; what still asks then does so until the process ends."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            answers.append(question())
        except BaseException as error:  # handed on to the one who asks
            errors.append(error)

    thread = threading.Thread(target=ask, name="sqlbeat-check", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answers[0]
