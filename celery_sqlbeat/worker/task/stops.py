"""What is raised in a task that must stop; to Celery each is an `Ignore`: no retry, no result."""

from celery.exceptions import Ignore

from celery_sqlbeat.errors import AlreadyDone, LeaseLost, RunCancelled
from celery_sqlbeat.worker.current import CurrentRun


class TaskStopped(LeaseLost, Ignore):
    """Stops a task whose lease is lost; an `Ignore` leads to no autoretry, failure or result."""


class TaskOverdue(TaskStopped):
    """Stops a body that takes longer than its `max_runtime`; to Celery that is a failure."""


class TaskCancelled(RunCancelled, Ignore):
    """Stops a task whose run somebody has cancelled; its result is REVOKED."""


class TaskDone(AlreadyDone, Ignore):
    """Ends a body whose effects were done before; to Celery that is a success."""


class TaskRun(CurrentRun):
    """The current run, whose `check` raises what Celery takes for no failure."""

    __slots__ = ()
    error = TaskStopped
    cancelled_error = TaskCancelled
    done_error = TaskDone
