"""What a task's process and the main process tell each other about a run.

Facts of the run travel to the process in its request; flags are memory that both share, made before
the first fork.
"""

import os
from collections.abc import Mapping, MutableMapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from celery import signals

from celery_sqlbeat import environment
from celery_sqlbeat.celery_bridge.message_header import HEADER
from celery_sqlbeat.celery_bridge.tasks import current_request, seconds_until_eta
from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.model.retries import Again, again_after
from celery_sqlbeat.store.sql.guard import GuardedRun, StoreFacts
from celery_sqlbeat.worker.current import CurrentRun
from celery_sqlbeat.worker.task.shared_flags import SharedFlags
from celery_sqlbeat.worker.task.stops import TaskRun

_FACTS = "sqlbeat_run"
_AGAIN = "sqlbeat_tried_again_in"
_GUARD = "sqlbeat_guard"
_DONE_HERE = "_sqlbeat_done_here"  # on the request: the slots whose effects this body has done


class Body(NamedTuple):
    """A body that runs in this process."""

    run: str
    retries: int
    place: int | None


_bodies: list[Body] = []
_shared: list[SharedFlags] = []  # at most one: of this process, or of the one it was forked from
_made_in: list[int] = []  # the process that made it
_lock = environment.lock()


def share() -> SharedFlags:
    """Return the flags of all workers in this process, which its children will see, too.

    One for all, since a task that ends does not know its worker. Never those of a parent process,
    which takes and gives back their places.
    """
    signals.task_success.connect(_on_task_success, weak=False, dispatch_uid="sqlbeat-task-success")
    signals.after_task_publish.connect(_on_task_published, weak=False, dispatch_uid="sqlbeat-task-published")
    with _lock:
        if _made_in != [os.getpid()]:
            _shared[:], _made_in[:] = [SharedFlags()], [os.getpid()]
        return _shared[0]


def write(
    request: MutableMapping[str, Any],
    run: StartedRun,
    place: int | None,
    again: Again = None,
    store: StoreFacts | None = None,
) -> None:
    """Write the facts of a run that has begun into its request, for the process of its task.

    Not into a header: a retry would send it on, and the sender of a message could forge it. Celery
    makes `delivery_info` anew for each message that comes. `again`: whether another attempt
    follows, should this one fail.
    """
    guarded = None if store is None else [*store, run.kind, run.exclusive]
    facts = [run.job_name, run.scheduled_for.isoformat(), run.attempt, run.fence, run.run_id, run.job_id, place]
    request["delivery_info"] = {
        **(request.get("delivery_info") or {}),
        _FACTS: facts,
        _AGAIN: again,
        _GUARD: guarded,
    }


def is_begun(request: Any) -> bool:
    """Return whether this request's run has begun in this worker."""
    return bool(_facts_of(request))


def current_run() -> CurrentRun | None:
    """Return the run that the calling task is the body of; None where no job started it."""
    request = current_request()
    facts = _facts_of(request)
    if not facts:
        return None
    job_name, scheduled_for, attempt, fence, run_id, job_id, place = facts
    is_lost, is_cancelled = partial(_is_lost, place), partial(_is_cancelled, place)
    slot, guarded = datetime.fromisoformat(scheduled_for), None
    if (given := request.get("delivery_info").get(_GUARD)) is not None:
        store_id, namespace, keep_seconds, kind, is_exclusive = given
        guarded = GuardedRun(
            store_id, namespace, job_name, kind, slot, attempt, fence, run_id, bool(is_exclusive), keep_seconds
        )
    done_here = vars(request).setdefault(_DONE_HERE, set())
    return TaskRun(
        job_name, slot, attempt, fence, is_lost, run_id, job_id, is_cancelled, guarded=guarded, done_here=done_here
    )


def has_begun(request: Mapping[str, Any]) -> bool:
    """Return whether another process of the pool has begun this very body."""
    facts = _facts_of(request)
    return bool(facts) and any(shared.has_begun(facts[-1]) for shared in _shared)


def begin(request: Mapping[str, Any]) -> bool:
    """Note that the body begins, in its process; False where its run must not begin any more."""
    facts = _facts_of(request)
    now = environment.monotonic()
    return not facts or all(shared.begin(facts[-1], now) for shared in _shared)


def is_safe(request: Any) -> bool:
    """Return whether the lease of this request's run still covers a body that begins now."""
    place = _facts_of(request)[-1]
    return all(shared.is_safe(place, environment.monotonic()) for shared in _shared)


def tried_again_in(request: Any, errors: tuple[str, ...]) -> float | None:
    """Return the seconds until another attempt after such an error; None for the last one."""
    info = request.get("delivery_info")
    return again_after(info.get(_AGAIN), errors) if isinstance(info, Mapping) else None


def give_up(request: Any) -> None:
    """Note that this request's run raised what is not tried again."""
    facts = _facts_of(request)
    for shared in _shared if facts else ():
        shared.give_up(facts[-1])


def note_done(request: Any, attempt: int) -> None:
    """Note by which attempt the effects of this request's slot were done before."""
    facts = _facts_of(request)
    for shared in _shared if facts else ():
        shared.note_done(facts[-1], attempt)


def note_return(request: Any) -> None:
    """Note that the body of this request's run has returned."""
    facts = _facts_of(request)
    for shared in _shared if facts else ():
        shared.note_return(facts[-1])


def _on_task_success(sender: Any = None, **_: Any) -> None:
    # In the task's process, before Celery reports: a process that ends now reports nothing more.
    facts = _facts_of(sender.request)
    for shared in _shared if facts else ():
        shared.succeed(facts[-1])


def enter(request: Any) -> Body:
    """Register a body that begins here, whichever thread of it will send a retry."""
    facts = _facts_of(request)
    body = Body(request.get("id"), request.get("retries") or 0, facts[-1] if facts else None)
    _bodies.append(body)
    return body


def leave(body: Body) -> None:
    """Remove a body that has ended."""
    _bodies.remove(body)


def _on_task_published(headers: Any = None, body: Any = None, **_: Any) -> None:
    """Note a retry where it is sent: by `throw=False`, or from a thread, its task may go on."""
    if not _shared or not isinstance(headers, Mapping) or HEADER not in headers:
        return
    sent = {**body, **headers} if isinstance(body, Mapping) else headers  # protocol 1 has these in the body
    retries = sent.get("retries") or 0
    own = _calling_body()
    known = [*_bodies, own] if own is not None else list(_bodies)
    tries = [each for each in known if each.run == sent.get("id") and each.retries < retries]
    if tries:  # the next try of a run may begin before the one before it has ended
        at = environment.unix_time() + seconds_until_eta(sent.get("eta"))
        for shared in _shared:
            shared.retry(max(tries, key=lambda each: each.retries).place, at)


def _calling_body() -> Body | None:
    """Return the body that calls, also of a task that was registered too late to be wrapped."""
    request = current_request()
    facts = _facts_of(request)
    return Body(request.id, request.retries or 0, facts[-1]) if facts else None


def _facts_of(request: Any) -> Any:
    info = request.get("delivery_info") if request is not None else None
    return info.get(_FACTS) if isinstance(info, Mapping) else None


def _is_lost(place: int | None) -> bool:
    return any(shared.is_set(place) for shared in _shared)


def _is_cancelled(place: int | None) -> bool:
    return any(shared.is_cancelled(place) for shared in _shared)
