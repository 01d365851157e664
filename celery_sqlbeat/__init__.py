"""A scheduler for Celery whose schedule lives in a SQL table; the public names."""

from typing import TYPE_CHECKING, Any

from celery_sqlbeat.errors import SqlbeatError

if TYPE_CHECKING:
    from celery_sqlbeat.beat.scheduler import Scheduler

__version__ = "0.1.0"
__all__ = ["Scheduler", "SqlbeatError", "__version__"]


def __getattr__(name: str) -> Any:
    # Celery loads this package in every process; only a beat needs the scheduler, and what it imports.
    if name == "Scheduler":
        from celery_sqlbeat.beat.scheduler import Scheduler

        return Scheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
