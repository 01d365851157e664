"""The error that stops a task whose lease is lost: ours by name, and for Celery one that is no failure."""

from celery.exceptions import Ignore

from celery_sqlbeat.errors import LeaseLost


class TaskStopped(LeaseLost, Ignore):  # type: ignore[misc]  # Celery has no types
    """The lease of this run is lost. As an `Ignore` it leads to no autoretry, no failure and no result."""


class TaskOverdue(TaskStopped):
    """The body of this run takes longer than its `max_runtime`. Only the body sees this; Celery sees a failure."""
