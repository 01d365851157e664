"""A scheduler for Celery whose schedule lives in a SQL table; the public names."""

from typing import TYPE_CHECKING, Any

from celery_sqlbeat.errors import (
    DatabaseUnavailable,
    IdempotencyConflict,
    LeaseLost,
    LockNotAcquired,
    SqlbeatError,
    VersionConflict,
)

if TYPE_CHECKING:
    from celery_sqlbeat.api import Handle
    from celery_sqlbeat.api.exclusive import exclusive
    from celery_sqlbeat.beat.scheduler import Scheduler
    from celery_sqlbeat.worker.current import CurrentRun

__version__ = "0.1.0"
__all__ = [
    "DatabaseUnavailable",
    "IdempotencyConflict",
    "LeaseLost",
    "LockNotAcquired",
    "Scheduler",
    "SqlbeatError",
    "VersionConflict",
    "__version__",
    "current_run",
    "exclusive",
    "setup",
]


def setup(app: Any) -> "Handle":
    """Return the handle of an app: its jobs, their history, the dead letters. Opens no connection.

    Workers of the app that run inside this program keep the leases of what they run.
    """
    from celery_sqlbeat.api import Handle
    from celery_sqlbeat.api.durable_eta import keep_far_calls
    from celery_sqlbeat.worker.install import install

    install(app)
    handle = Handle(app)
    keep_far_calls(handle)
    return handle


def current_run() -> "CurrentRun | None":
    """Return the run whose body is executing in this thread; None outside of a run."""
    from celery_sqlbeat.worker.task.flags import current_run

    return current_run()


def __getattr__(name: str) -> Any:
    # Celery loads this package in every process, but only a beat needs the scheduler.
    if name == "Scheduler":
        try:
            from celery_sqlbeat.beat.scheduler import Scheduler
        except ImportError as error:  # another Celery, perhaps: a beat ends with one line, and no traceback
            from celery_sqlbeat.celery_bridge import guard

            raise SystemExit(guard.told(error, "beat")) from error
        return Scheduler
    if name == "exclusive":
        from celery_sqlbeat.api.exclusive import exclusive

        return exclusive
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
