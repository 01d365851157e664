"""Which run the task that asks is the body of: the worker writes it into the request, and the task's process reads it.

In prefork the request travels to the child process, and the marks are memory that it shares with the main process.
"""

import os
import time
from collections.abc import Mapping, MutableMapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from celery import _state, signals
from celery.utils.time import maybe_iso8601

from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.worker import native
from celery_sqlbeat.worker.current import CurrentRun
from celery_sqlbeat.worker.header import HEADER
from celery_sqlbeat.worker.marks import Marks
from celery_sqlbeat.worker.reports import seconds_until
from celery_sqlbeat.worker.stopped import TaskStopped

_FACTS = "sqlbeat_run"
_AGAIN = "sqlbeat_tried_again_in"


class Body(NamedTuple):
    """A body that goes on in this process."""

    run: str
    retries: int
    place: int | None


_bodies: list[Body] = []
_shared: list[Marks] = []  # at most one: of this process, or of the one it was forked from
_made_in: list[int] = []  # the process that made it
_lock = native.lock()


class TaskRun(CurrentRun):
    """The current run as Celery's tasks see it."""

    __slots__ = ()
    error = TaskStopped


def share() -> Marks:
    """The marks of all workers in this process; their tasks read them here, and in the processes forked from it.

    One for all, since a task that ends does not know whose it was. Not those of a parent: it gives out their places.
    """
    signals.task_success.connect(_on_task_success, weak=False, dispatch_uid="sqlbeat-task-success")
    signals.after_task_publish.connect(_on_task_published, weak=False, dispatch_uid="sqlbeat-task-published")
    with _lock:
        if _made_in != [os.getpid()]:
            _shared[:], _made_in[:] = [Marks()], [os.getpid()]
        return _shared[0]


def write(
    request: MutableMapping[str, Any], run: StartedRun, place: int | None, again_seconds: float | None = None
) -> None:
    """Give the task's process the facts of the run that has begun, and when another attempt follows if this one fails.

    Not in a header: a retry would send it on, and whoever sends a message could forge it. Celery makes `delivery_info`
    anew for each message that comes.
    """
    facts = [run.job_name, run.scheduled_for.isoformat(), run.attempt, run.fence, run.run_id, run.job_id, place]
    request["delivery_info"] = {**(request.get("delivery_info") or {}), _FACTS: facts, _AGAIN: again_seconds}


def is_begun(request: Any) -> bool:
    """Whether this request's run has begun in this worker."""
    return bool(_written_in(request))


def current_run() -> CurrentRun | None:
    """The run that the calling task is the body of; None outside of a task that a job started."""
    task = _state.get_current_worker_task()
    facts = _facts(task) if task else None
    if not facts:
        return None
    job_name, scheduled_for, attempt, fence, run_id, job_id, place = facts
    is_lost = partial(_is_lost, place)
    return TaskRun(job_name, datetime.fromisoformat(scheduled_for), attempt, fence, is_lost, run_id, job_id)


def has_begun(request: Mapping[str, Any]) -> bool:
    """Whether another process of the pool has begun this very body."""
    facts = _written_in(request)
    return bool(facts) and any(marks.has_begun(facts[-1]) for marks in _shared)


def begin(request: Mapping[str, Any]) -> bool:
    """Say in the process of the body that it begins; False where its run is not this worker's any more."""
    facts = _written_in(request)
    now = time.monotonic()
    return not facts or all(marks.begin(facts[-1], now) for marks in _shared)


def tried_again_in(request: Any) -> float | None:
    """The seconds until another attempt follows if this one fails; None where it is the last one."""
    info = request.get("delivery_info")
    return info.get(_AGAIN) if isinstance(info, Mapping) else None


def note_return(request: Any) -> None:
    """Say that the body of this request's run has returned."""
    facts = _written_in(request)
    for marks in _shared if facts else ():
        marks.note_return(facts[-1])


def _on_task_success(sender: Any = None, **_: Any) -> None:
    """Where the task ran, and before anybody is told: a process that ends now can report nothing any more."""
    facts = _facts(sender)
    for marks in _shared if facts else ():
        marks.succeed(facts[-1])


def enter(request: Any) -> Body:
    """The body of this request's run begins here: whichever thread sends its retry, it is known whose that is."""
    facts = _written_in(request)
    body = Body(request.get("id"), request.get("retries") or 0, facts[-1] if facts else None)
    _bodies.append(body)
    return body


def leave(body: Body) -> None:
    """The body has ended."""
    _bodies.remove(body)


def _on_task_published(headers: Any = None, body: Any = None, **_: Any) -> None:
    """Note a retry: a task may go on after it, by `throw=False`, or send it from a thread of its own."""
    if not _shared or not isinstance(headers, Mapping) or HEADER not in headers:
        return
    sent = {**body, **headers} if isinstance(body, Mapping) else headers  # the older protocol has these in the body
    retries = sent.get("retries") or 0
    own = _own_body()
    known = [*_bodies, own] if own is not None else list(_bodies)
    tries = [one for one in known if one.run == sent.get("id") and one.retries < retries]
    if tries:  # a later one of the same run may have begun before the one before has ended
        at = time.time() + seconds_until(maybe_iso8601(sent.get("eta")), _state.get_current_app())
        for marks in _shared:
            marks.retry(max(tries, key=lambda one: one.retries).place, at)


def _own_body() -> Body | None:
    """The body that calls, also where its task came so late that nobody watches what it calls."""
    task = _state.get_current_worker_task()
    facts = _facts(task) if task else None
    return Body(task.request.id, task.request.retries or 0, facts[-1]) if facts else None


def _facts(task: Any) -> Any:
    return _written_in(task.request)


def _written_in(request: Any) -> Any:
    info = request.get("delivery_info")
    return info.get(_FACTS) if isinstance(info, Mapping) else None


def _is_lost(place: int | None) -> bool:
    return any(marks.is_set(place) for marks in _shared)
