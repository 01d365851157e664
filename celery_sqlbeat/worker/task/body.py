"""The body of a task, in the process that runs it: whether it may begin, and how it ended.

Between the start in the database and the first line of a body lie a queue, a pipe to a child and an
acknowledgement. A machine that stands still there for longer than the lease must not run the body
after another worker has begun it. So the lease is checked twice: before Celery prepares the task,
and at the body itself, since in between hooks run and a result backend may be asked.

Celery reports an error of the result backend, or of a callback that could not be sent, as the
task's own; here the two are told apart.
"""

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

from celery.exceptions import Ignore, Reject, Retry

from celery_sqlbeat.celery_bridge.tasks import (
    Report,
    attempt_failed,
    hide_from_monitors,
    keep_hidden,
    report_raised,
    wrap_bodies,
)
from celery_sqlbeat.errors import AlreadyDone, MaxRuntimeExceeded
from celery_sqlbeat.model.retries import classes_of
from celery_sqlbeat.worker.task import flags
from celery_sqlbeat.worker.task.stops import TaskOverdue

here = threading.local()  # green where `threading` is; `body_guard`: of the body in this thread, if it has one
_ENTERED = "_sqlbeat_body_entered"  # on the request: what a body calls of its own task is no body
_OF_CELERY = (Retry, Ignore, Reject)  # how a task tells Celery what to do; no failures
_ENDS_THE_WORKER = MemoryError  # Celery's main process ends with it: memory is short there, too


class NotBegun(Ignore):
    """The body did not begin: the lease of its run is lost, about to end, or was given back."""


class BegunBefore(NotBegun):
    """A process that is gone had begun the body: Celery's pool gave its task to another one."""


def check_prerun(trace: Callable[..., Any], task: str, run: str, request: Mapping[str, Any], *rest: Any) -> Any:
    """Call what Celery would run in this process of the pool, if the run may still begin."""
    if flags.has_begun(request):
        raise BegunBefore
    if not flags.begin(request):
        raise NotBegun
    return trace(task, run, request, *rest)


def watch_bodies_of(app: Any, hostname: str | None, is_traced: bool = False) -> None:
    """Note how the bodies of all tasks of the app end, from now on."""
    wrap_bodies(app, hostname, _watched, is_traced)


def _watched(original: Callable[..., Any], request_of: Callable[[Any], Any], is_body: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def body(*args: Any, **kwargs: Any) -> Any:
        request = request_of(args)
        if not flags.is_begun(request) or getattr(request, _ENTERED, False):
            return original(*args, **kwargs)
        setattr(request, _ENTERED, True)
        keep_hidden(request)
        entered = flags.enter(request)
        try:
            if not flags.is_safe(request):
                raise NotBegun
            if (body_guard := getattr(here, "body_guard", None)) is not None:
                body_guard.open()
            result = original(*args, **kwargs)
        except AlreadyDone as done:
            if not is_body:
                raise
            flags.note_done(request, done.attempt)
            result = None
        except TaskOverdue as stop:
            error = MaxRuntimeExceeded("its task was stopped")
            told = report_raised(stop)._replace(error=repr(error), errors=classes_of(error))
            raise _as_celery_sees(request, error, told) from stop
        except (*_OF_CELERY, _ENDS_THE_WORKER):
            raise
        except Exception as error:
            seen = _as_celery_sees(request, error, report_raised(error))
            if seen is error:
                raise
            raise seen from error
        finally:
            setattr(request, _ENTERED, False)
            flags.leave(entered)
        if is_body:
            flags.note_return(request)
        return result

    return body


def _as_celery_sees(request: Any, error: Exception, told: Report) -> Exception:
    """Return the error, or a retry where another attempt follows this one."""
    seconds = flags.tried_again_in(request, told.errors)
    if seconds is None:
        flags.give_up(request)
        return error
    hide_from_monitors(request)
    return attempt_failed(error, seconds, told)
