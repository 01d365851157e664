"""The Python handle, `celery_sqlbeat.setup(app)`: everything that the command line does, and programs may do."""

from celery_sqlbeat.handle.handle import Handle
from celery_sqlbeat.handle.records import Job, Run

__all__ = ["Handle", "Job", "Run"]
