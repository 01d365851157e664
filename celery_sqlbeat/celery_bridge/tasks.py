"""Tasks as Celery sees them: who calls, what surrounds a body, retries, and results.

An attempt that is tried again looks like Celery's own retry to hooks, monitors and the result
backend: `AttemptFailed` is a `Retry`. Children of a pool send it to the main process, pickled.
Such an attempt leaves RETRY in the result backend, or STARTED where its process was killed. Once
its slot has ended, its result says which attempt ended it; safe to do twice, and by several.
"""

import json
import numbers
import traceback
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from celery import _state, current_app, states
from celery.app import trace
from celery.backends.base import DisabledBackend
from celery.exceptions import Retry
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils.encoding import safe_str

from celery_sqlbeat import environment, events
from celery_sqlbeat.celery_bridge.message_header import HIDDEN_ARGUMENTS, is_hidden
from celery_sqlbeat.config.validation import LONGEST_WAIT
from celery_sqlbeat.errors import AttemptFollowed
from celery_sqlbeat.model import EndedSlot
from celery_sqlbeat.model.retries import classes_of
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import RunNote

MONITOR = "sentry-monitor-slug"  # without it Sentry's SDK sends no check-in for a task
_INNER = "headers"  # where the SDK puts its headers a second time
_WRAPPED = "_sqlbeat_body"


class Report(NamedTuple):
    """What is stored of an error; the store bounds its length."""

    error: str | None = None
    traceback: str | None = None
    errors: tuple[str, ...] = ()
    """The classes of the error, as policies name them."""


NO_REPORT = Report()


def report(error: BaseException, exc_info: Any) -> Report:
    """Return the text of an error that Celery reports."""
    trace = safe_str(getattr(exc_info, "traceback", None) or "")
    return Report(text_of(error), trace or None, classes_of(error))


def report_raised(error: BaseException) -> Report:
    """Return the text of an error that is being handled, without the frame that handles it."""
    trace = error.__traceback__
    try:
        lines = traceback.format_exception(type(error), error, trace.tb_next if trace and trace.tb_next else trace)
    except Exception:  # an error may be unable to say what it is
        lines = traceback.format_tb(trace)
    return Report(text_of(error), safe_str("".join(lines)) or None, classes_of(error))


def text_of(error: BaseException) -> str:
    """Return the repr of an error, or the name of its type where it has none."""
    try:
        return repr(error) or type(error).__name__
    except Exception:
        return type(error).__name__


class AttemptFailed(Retry):
    """The attempt has failed, and another one follows; to Celery that is a retry."""

    def __init__(
        self, message: str | None = None, exc: Any = None, when: Any = None, told: Report = NO_REPORT, **options: Any
    ) -> None:
        """Take the error, the seconds until the next attempt, and what the database stores."""
        super().__init__(message, exc, when, **options)
        self.seconds: float | None = when
        self.told = told

    def __reduce__(self) -> Any:
        return type(self), (self.message, self.exc, self.when, self.told)


def attempt_failed(error: BaseException, seconds: float, told: Report) -> AttemptFailed:
    """Return what Celery is told of an attempt that this error ended and another one follows."""
    return AttemptFailed(
        f"the attempt failed, another one follows in {seconds:.1f}s: {told.error}", error, seconds, told
    )


def hide_from_monitors(request: Any) -> None:
    """Keep Sentry from checking this slot in: its attempt is over, and the slot is not."""
    headers = getattr(request, "headers", None)
    if not isinstance(headers, dict):
        return
    for each in (headers, headers.get(_INNER)):
        if isinstance(each, dict):
            each.pop(MONITOR, None)


def keep_hidden(request: Any) -> None:
    """Hide the arguments of a sensitive job also in the message of Celery's own retry."""
    if is_hidden(request.__dict__) and not isinstance(request, _Hidden):
        kind: Any = type(request)
        request.__class__ = _hidden(kind)


class _Hidden:
    """Marks the context of a task whose arguments are not shown."""


@cache
def _hidden(base: Any) -> Any:
    def as_execution_options(request: Any) -> dict[str, Any]:
        return {**base.as_execution_options(request), **HIDDEN_ARGUMENTS}

    return type(base.__name__, (base, _Hidden), {"as_execution_options": as_execution_options})


def current_request() -> Any:
    """Return the request whose task calls; None outside of a task that a worker runs."""
    task = _state.get_current_worker_task()
    return task.request if task else None


def seconds_until(when: Any, app: Any) -> float:
    """Return how long until Celery's own retry is due, bounded by what a database can add.

    Celery gives seconds, an instant, or nothing (at once).
    """
    if isinstance(when, numbers.Real):
        return min(max(0.0, float(when)), LONGEST_WAIT)
    if isinstance(when, datetime):
        at: datetime = maybe_make_aware(when, app.timezone)
        return min(max(0.0, (at - environment.now()).total_seconds()), LONGEST_WAIT)
    return 0.0


def seconds_until_eta(eta: Any) -> float:
    """Return the same for the `eta` of a message that this process has sent."""
    return seconds_until(maybe_iso8601(eta), current_app)


Around = Callable[[Callable[..., Any], Callable[[Any], Any], bool], Callable[..., Any]]
"""Returns what is called instead of a body: by the body, by the way from its arguments to its
request, and by whether a return is the return of the task."""


def wrap_bodies(app: Any, hostname: str | None, around: Around, is_traced: bool = False) -> None:
    """Put `around` every body of the app that has none yet, below what tools wrap later.

    `is_traced`: Celery has built its tracers already, and builds those of new tasks once more.
    """
    for name, task in list(app.tasks.items()):
        if is_wrapped(task):
            continue
        _wrap_body(task, around)
        if is_traced:
            task.__trace__ = trace.build_tracer(name, task, app.loader, hostname, app=app)


def is_wrapped(task: Any) -> bool:
    """Return whether something was put around the body of this task."""
    return vars(task).get(_WRAPPED) is task  # a class-based task may be copied with its attributes


def _wrap_body(task: Any, around: Around) -> None:
    # Celery calls `__call__` where a task has its own, else `run`. What surrounds the body belongs
    # to it: a `__call__` that catches an error must see that one.
    if trace.task_has_custom(task, "__call__"):
        kind = type(task)
        kind.__call__ = around(kind.__call__, lambda args: args[0].request, True)
    else:
        task.run = around(task.run, lambda _args: task.request, True)
    if trace.task_has_custom(task, "before_start"):
        task.before_start = around(task.before_start, lambda _args: task.request, False)
    setattr(task, _WRAPPED, task)


PAGE = 100  # slots whose results are ended at a time
DAY_SECONDS = 86400.0  # after it results have expired, as Celery sets it; and nobody waits any more


def end_results(app: Any, store: Store) -> bool:
    """End the results of a page of slots; return whether there may be more."""
    slots = store.unended_results(PAGE, DAY_SECONDS)
    if not slots:
        return False
    backend = app.backend
    if _keeps_results(backend):
        for slot in slots:
            for run_id, attempt in slot.earlier:
                _end(app, backend, slot, run_id, attempt)
    run_ids = [run_id for slot in slots for run_id in (slot.run_id, *dict(slot.earlier))]
    store.note_runs([RunNote(run_id, results_ended=True) for run_id in run_ids])
    return len(slots) == PAGE


def _end(app: Any, backend: Any, slot: EndedSlot, run_id: str, attempt: int) -> None:
    status = backend.get_task_meta(run_id, cache=False)["status"]
    if status in states.READY_STATES or (status == states.PENDING and not _is_wanted(app, slot)):
        return
    followed = AttemptFollowed(
        f"attempt {attempt} of job {slot.job_name!r} came to nothing; its slot ended as {slot.state} with attempt "
        f"{slot.attempt}, {slot.run_id}"
    )
    backend.store_result(run_id, followed, states.FAILURE)


def store_revoked(app: Any, run_id: str, task_name: str | None) -> None:
    """Store the result of a run that was cancelled before it began, for those who wait for it."""
    task = app.tasks.get(task_name)
    ignored = app.conf.task_ignore_result if task is None else task.ignore_result
    try:
        if not ignored and _keeps_results(app.backend):
            app.backend.mark_as_revoked(run_id, "cancelled")
    except Exception as error:  # backends raise what their clients raise
        events.step_failed(step="store that a run was cancelled", subject=run_id, error=error)


def _keeps_results(backend: Any) -> bool:
    """Return whether results can be read by others; rpc sends each to who asked for it."""
    return not isinstance(backend, DisabledBackend) and type(backend).__module__ != "celery.backends.rpc"


def _is_wanted(app: Any, slot: EndedSlot) -> bool:
    """Return whether somebody may wait for a result of which nothing was ever stored."""
    try:
        options = json.loads(slot.options) if isinstance(slot.options, str) else {}
    except ValueError:
        options = {}
    ignored = options.get("ignore_result") if isinstance(options, dict) else None
    task = app.tasks.get(slot.task_name)
    return task is not None and not (task.ignore_result if ignored is None else ignored)


class SlotResults:
    """Ends the results of one worker's slots in a thread, since backends may block for long."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = environment.lock()
        self._is_running = self._is_asked = False

    def slot_ended(self, store: Store) -> None:
        """Note that a slot has ended by another attempt than its first. From any thread."""
        if environment.is_patched():
            return  # clients of result backends are made for green threads then: a beat does it
        with self._lock:
            self._is_asked = True
            must_start, self._is_running = not self._is_running, True
        if must_start:
            environment.start_thread(lambda: self._run(store))

    def _run(self, store: Store) -> None:
        while True:
            with self._lock:
                if not self._is_asked:
                    self._is_running = False
                    return
                self._is_asked = False
            try:
                while end_results(self._app, store):
                    pass
            except Exception as error:  # of the database, or whatever a result backend raises
                events.noted(topic="results of earlier attempts, which a beat ends", text=error)
