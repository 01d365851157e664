"""What Celery calls as the body of a task, seen from inside: whether it returned, and what it raised.

Celery reports an error of the result backend, or of a callback that could not be sent, as the task's own; here the two
are told apart. And an attempt that will be tried again must look like Celery's own retry before Celery acts on it.
"""

import functools
from collections.abc import Callable
from typing import Any

from celery.app import trace
from celery.exceptions import Ignore, Reject, Retry

from celery_sqlbeat.errors import MaxRuntimeExceeded
from celery_sqlbeat.worker import running
from celery_sqlbeat.worker.failed import attempt_failed
from celery_sqlbeat.worker.monitors import leave_checked_in
from celery_sqlbeat.worker.reports import Report, raised
from celery_sqlbeat.worker.stopped import TaskOverdue

_WRAPPED = "_sqlbeat_sees_body"
_ENTERED = "_sqlbeat_body_entered"  # on the request: what a body calls of its own task is no body
_OF_CELERY = (Retry, Ignore, Reject)  # how a task tells Celery what to do; no failures
_ENDS_THE_WORKER = MemoryError  # Celery's main process ends with it, since memory is short there, too


def watch_bodies_of(app: Any, hostname: str | None, is_traced: bool = False) -> None:
    """See the bodies of all tasks that the app has. Before tools wrap them, so that they see what Celery sees.

    `is_traced`: Celery has built what calls them already, and does so once more for those that are new here.
    """
    for name, task in list(app.tasks.items()):
        if vars(task).get(_WRAPPED) is task:  # a class-based task may be copied with its attributes
            continue
        _watch_body(task)
        if is_traced:
            task.__trace__ = trace.build_tracer(name, task, app.loader, hostname, app=app)


def _watch_body(task: Any) -> None:
    # Celery calls `__call__` where a task has its own, else `run`. What is around the body belongs to the body: a
    # `__call__` that catches an error must see that one.
    if trace.task_has_custom(task, "__call__"):
        kind = type(task)
        kind.__call__ = _seen(kind.__call__, lambda args: args[0].request)
    else:
        task.run = _seen(task.run, lambda _args: task.request)
    if trace.task_has_custom(task, "before_start"):
        task.before_start = _seen(task.before_start, lambda _args: task.request, returns=False)
    setattr(task, _WRAPPED, task)


def _seen(original: Callable[..., Any], request_of: Callable[[Any], Any], returns: bool = True) -> Callable[..., Any]:
    @functools.wraps(original)
    def body(*args: Any, **kwargs: Any) -> Any:
        request = request_of(args)
        if not running.is_begun(request) or getattr(request, _ENTERED, False):
            return original(*args, **kwargs)
        setattr(request, _ENTERED, True)
        entered = running.enter(request)
        try:
            result = original(*args, **kwargs)
        except TaskOverdue as stop:
            error = MaxRuntimeExceeded("its task was stopped")
            raise _as_celery_sees(request, error, raised(stop)._replace(error=repr(error))) from stop
        except (*_OF_CELERY, _ENDS_THE_WORKER):
            raise
        except Exception as error:
            seen = _as_celery_sees(request, error, raised(error))
            if seen is error:
                raise
            raise seen from error
        finally:
            setattr(request, _ENTERED, False)
            running.leave(entered)
        if returns:
            running.note_return(request)
        return result

    return body


def _as_celery_sees(request: Any, error: Exception, told: Report) -> Exception:
    seconds = running.tried_again_in(request)
    if seconds is None:
        return error
    leave_checked_in(request)
    return attempt_failed(error, seconds, told)
