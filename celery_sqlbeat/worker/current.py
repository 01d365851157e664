"""What a task may ask about the run that it is the body of; `task.flags` finds it."""

from collections.abc import Callable
from datetime import datetime

from celery_sqlbeat.errors import LeaseLost, RunCancelled
from celery_sqlbeat.model import StartedRun


def _never() -> bool:
    return False


class CurrentRun:
    """The run of a task: pass `fence` on to what it writes to, ask `lost` between long steps."""

    __slots__ = ("_is_cancelled", "_is_lost", "attempt", "fence", "job_id", "job_name", "run_id", "scheduled_for")

    error: type[LeaseLost] = LeaseLost
    """What `check` raises; a subclass may raise one that Celery, too, knows what to do with."""
    cancelled_error: type[RunCancelled] = RunCancelled

    def __init__(
        self,
        job_name: str,
        scheduled_for: datetime,
        attempt: int,
        fence: int,
        is_lost: Callable[[], bool],
        run_id: str,
        job_id: str,
        is_cancelled: Callable[[], bool] = _never,
    ) -> None:
        """`is_lost` is asked each time, in the process that runs the body; it must be cheap.

        So is `is_cancelled`.
        """
        self.job_name = job_name
        self.scheduled_for = scheduled_for
        self.attempt = attempt
        self.fence = fence
        self.run_id = run_id
        self.job_id = job_id
        self._is_lost = is_lost
        self._is_cancelled = is_cancelled

    @classmethod
    def of(cls, run: StartedRun, is_lost: Callable[[], bool]) -> "CurrentRun":
        """Return what a task may ask about a started run."""
        return cls(run.job_name, run.scheduled_for, run.attempt, run.fence, is_lost, run.run_id, run.job_id)

    @property
    def lost(self) -> bool:
        """Whether the lease is lost, or may soon be: stop, and write nothing more."""
        return self._is_lost()

    @property
    def cancelled(self) -> bool:
        """Whether somebody has cancelled this run: stop soon; the lease is kept meanwhile."""
        return self._is_cancelled()

    def check(self) -> None:
        """Raise LeaseLost or RunCancelled where the task must stop: for between long steps."""
        run = f"the run of {self.job_name!r} for {self.scheduled_for.isoformat()}, attempt {self.attempt},"
        if self.lost:
            raise self.error(f"{run} has lost its lease: another worker may run it now")
        if self.cancelled:
            raise self.cancelled_error(f"{run} was cancelled: it ends as that, whatever its task still does")

    def __repr__(self) -> str:
        return f"<run of {self.job_name!r} for {self.scheduled_for.isoformat()}, attempt {self.attempt}>"
