"""What a task's process and the main process tell each other about a run.

Facts of the run travel to the process in its request; flags are memory that both share. That memory
is made before the first fork, so that every child has it.
"""

import mmap
import os
from collections import deque
from collections.abc import Mapping, MutableMapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeGuard

from celery import signals

from celery_sqlbeat import environment
from celery_sqlbeat.celery_bridge.message_header import HEADER
from celery_sqlbeat.celery_bridge.tasks import current_request, seconds_until_eta
from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.worker.current import CurrentRun
from celery_sqlbeat.worker.task.stops import TaskRun

_MOST = 65536  # runs of one process at a time; one beyond has no flags, and is stopped all the same
_DOUBLE = 8  # bytes
_LOST, _SUCCEEDED, _BEGUN, _FORBIDDEN, _RETRIES, _RETURNED, _CANCELLED = range(7)  # the bytes of each run
_BYTES = 7


class SharedFlags:
    """Flags of runs in shared memory: a byte each, which only one of the two processes writes.

    A run's number in this memory is its place; without one (None) nothing is known of the run.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._until = memoryview(mmap.mmap(-1, _DOUBLE * most)).cast("d")
        self._retries_at = memoryview(mmap.mmap(-1, _DOUBLE * most)).cast("d")
        self._memory = mmap.mmap(-1, _BYTES * most)
        self._most = most
        self._free = deque(range(most))

    def take(self) -> int | None:
        """Take the place of a new run; None where all are taken."""
        try:
            place = self._free.popleft()
        except IndexError:
            return None
        self._memory[_BYTES * place : _BYTES * (place + 1)] = bytes(_BYTES)
        self._until[place] = 0.0
        return place

    def set(self, place: int | None) -> None:
        """Note that the run's lease is lost."""
        self._note(place, _LOST)

    def cancel(self, place: int | None) -> None:
        """Note that somebody has cancelled the run."""
        self._note(place, _CANCELLED)

    def is_cancelled(self, place: int | None) -> bool:
        """Return whether somebody has cancelled the run."""
        return self._is_noted(place, _CANCELLED)

    def extend(self, place: int | None, until: float) -> None:
        """Note until when the lease is safe, by the monotonic clock that all processes share."""
        if place is not None:
            self._until[place] = until

    def release(self, place: int | None) -> None:
        """Give the place of an ended run back, to be taken last, for those that still read it."""
        if place is not None:
            self._free.append(place)

    def is_set(self, place: int | None) -> bool:
        """Return whether the run's lease is lost."""
        return self._is_noted(place, _LOST)

    def begin(self, place: int | None, now: float) -> bool:
        """Note that the body begins; False where it may not."""
        self._note(place, _BEGUN)
        _publish_writes()  # `begin` and `forbid` write before they read: at least one sees the other
        return not self._is_noted(place, _FORBIDDEN) and self.is_safe(place, now)

    def is_safe(self, place: int | None, now: float) -> bool:
        """Return whether a body may begin: nobody else can have the run yet, nobody cancelled it.

        True where nothing is known of it.
        """
        if not self._has(place):
            return True
        must_stop = self._is_noted(place, _LOST) or self._is_noted(place, _CANCELLED)
        return not must_stop and now < self._until[place]

    def has_begun(self, place: int | None) -> bool:
        """Return whether a process of the pool has begun the body, or was about to."""
        return self._is_noted(place, _BEGUN)

    def forbid(self, place: int | None) -> bool:
        """Let the body begin no more; False where it has begun, or where it has no place."""
        self._note(place, _FORBIDDEN)
        _publish_writes()
        return self._has(place) and not self._is_noted(place, _BEGUN)

    def succeed(self, place: int | None) -> None:
        """Note that the task succeeded, and that its result is stored."""
        self._note(place, _SUCCEEDED)

    def has_succeeded(self, place: int | None) -> bool:
        """Return whether the task succeeded, even if its process ended before it reported so."""
        return self._is_noted(place, _SUCCEEDED)

    def note_return(self, place: int | None) -> None:
        """Note that the body returned; Celery has yet to store its result."""
        self._note(place, _RETURNED)

    def has_returned(self, place: int | None) -> bool:
        """Return whether the body returned, whatever became of its result and its callbacks."""
        return self._is_noted(place, _RETURNED)

    def retry(self, place: int | None, at: float) -> None:
        """Note that the task has sent itself again, for this instant by the machine's clock."""
        if self._has(place):
            self._retries_at[place] = at
            self._note(place, _RETRIES)

    def retries_at(self, place: int | None) -> float | None:
        """Return when the retry that the task has sent is due; None where it has sent none."""
        return self._retries_at[place] if self._has(place) and self._is_noted(place, _RETRIES) else None

    def _note(self, place: int | None, flag: int) -> None:
        if self._has(place):
            self._memory[_BYTES * place + flag] = 1

    def _is_noted(self, place: int | None, flag: int) -> bool:
        return self._has(place) and self._memory[_BYTES * place + flag] != 0

    def _has(self, place: int | None) -> TypeGuard[int]:
        return place is not None and 0 <= place < self._most


def _publish_writes() -> None:
    """Let other processes see what this one has written, before it reads.

    A processor may reorder the two; an atomic instruction keeps the order. A new lock each time,
    since a fork could copy one that is taken.
    """
    environment.lock().acquire()


_FACTS = "sqlbeat_run"
_AGAIN = "sqlbeat_tried_again_in"


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
    request: MutableMapping[str, Any], run: StartedRun, place: int | None, again_seconds: float | None = None
) -> None:
    """Write the facts of a run that has begun into its request, for the process of its task.

    Not into a header: a retry would send it on, and the sender of a message could forge it. Celery
    makes `delivery_info` anew for each message that comes. `again_seconds`: until another attempt,
    should this one fail.
    """
    facts = [run.job_name, run.scheduled_for.isoformat(), run.attempt, run.fence, run.run_id, run.job_id, place]
    request["delivery_info"] = {**(request.get("delivery_info") or {}), _FACTS: facts, _AGAIN: again_seconds}


def is_begun(request: Any) -> bool:
    """Return whether this request's run has begun in this worker."""
    return bool(_facts_of(request))


def current_run() -> CurrentRun | None:
    """Return the run that the calling task is the body of; None where no job started it."""
    facts = _facts_of(current_request())
    if not facts:
        return None
    job_name, scheduled_for, attempt, fence, run_id, job_id, place = facts
    is_lost, is_cancelled = partial(_is_lost, place), partial(_is_cancelled, place)
    slot = datetime.fromisoformat(scheduled_for)
    return TaskRun(job_name, slot, attempt, fence, is_lost, run_id, job_id, is_cancelled)


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


def tried_again_in(request: Any) -> float | None:
    """Return the seconds until another attempt, should this one fail; None for the last one."""
    info = request.get("delivery_info")
    return info.get(_AGAIN) if isinstance(info, Mapping) else None


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
