"""The former name of `celery_sqlbeat.api`, for programs that import it."""

from celery_sqlbeat.api import Handle, Job, Run

__all__ = ["Handle", "Job", "Run"]
