"""A scheduler for Celery whose schedule lives in a SQL table; the public names."""

from typing import TYPE_CHECKING, Any

from celery_sqlbeat.errors import LeaseLost, SqlbeatError, VersionConflict

if TYPE_CHECKING:
    from celery_sqlbeat.beat.scheduler import Scheduler
    from celery_sqlbeat.handle import Handle
    from celery_sqlbeat.worker.current import CurrentRun

__version__ = "0.1.0"
__all__ = ["LeaseLost", "Scheduler", "SqlbeatError", "VersionConflict", "__version__", "current_run", "setup"]


def setup(app: Any) -> "Handle":
    """Return the handle of an app: its jobs, their history, the dead letters. Opens no connection.

    Workers of the app that run inside this program keep the leases of what they run.
    """
    from celery_sqlbeat.handle import Handle
    from celery_sqlbeat.worker.installation import install

    install(app)
    return Handle(app)


def current_run() -> "CurrentRun | None":
    """The run whose body the calling task is; None outside of a task that a job started."""
    from celery_sqlbeat.worker.running import current_run

    return current_run()


def __getattr__(name: str) -> Any:
    # Celery loads this package in every process; only a beat needs the scheduler, and what it imports.
    if name == "Scheduler":
        from celery_sqlbeat.beat.scheduler import Scheduler

        return Scheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
