"""What a task may ask about the run that it is the body of; `task.flags` finds it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from celery_sqlbeat.errors import AlreadyDone, LeaseLost, RunCancelled, SecondTransaction, SqlbeatError
from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.store.sql import guard
from celery_sqlbeat.store.sql.foreign_transactions import transaction_on


def _never() -> bool:
    return False


class CurrentRun:
    """The run of a task: pass `fence` on to what it writes to, ask `lost` between long steps."""

    __slots__ = (
        "_done_here",
        "_guarded",
        "_is_cancelled",
        "_is_lost",
        "attempt",
        "fence",
        "job_id",
        "job_name",
        "run_id",
        "scheduled_for",
    )

    error: type[LeaseLost] = LeaseLost
    """What `check` raises; a subclass may raise one that Celery, too, knows what to do with."""
    cancelled_error: type[RunCancelled] = RunCancelled
    done_error: type[AlreadyDone] = AlreadyDone

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
        *,
        guarded: guard.GuardedRun | None = None,
        done_here: set[str] | None = None,
    ) -> None:
        """`is_lost` is asked each time, in the process that runs the body; it must be cheap.

        So is `is_cancelled`. `guarded`: what its transactions are guarded by. `done_here`: the
        slots whose effects this body has done, which all that ask for its run share.
        """
        self.job_name = job_name
        self.scheduled_for = scheduled_for
        self.attempt = attempt
        self.fence = fence
        self.run_id = run_id
        self.job_id = job_id
        self._is_lost = is_lost
        self._is_cancelled = is_cancelled
        self._guarded = guarded
        self._done_here = set() if done_here is None else done_here

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
        if self.lost:
            raise self._lost_error()
        if self.cancelled:
            raise self.cancelled_error(f"{self._told} was cancelled: it ends as that, whatever its task still does")

    def _lost_error(self) -> LeaseLost:
        return self.error(f"{self._told} has lost its lease: another worker may run it now")

    @property
    def _told(self) -> str:
        return f"the run of {self.job_name!r} for {self.scheduled_for.isoformat()}, attempt {self.attempt},"

    @contextmanager
    def transaction(self, connection: Any = None, *, using: str | None = None) -> Iterator[None]:
        """Do the effects of the run once, in a transaction of the shop's own database.

        It commits at the end of the block, unless the transaction was open before: then it is its
        owner who commits. Whatever is raised in the block leaves nothing of it. AlreadyDone: an
        earlier attempt of the slot has done them. LeaseLost: another run has followed this one.
        """
        run = self._guarded
        if run is None:
            raise SqlbeatError("only a run that a worker of this package has started can guard its effects")
        self.check()
        try:
            with transaction_on(connection, using, lambda session: self._leave(session, run)) as session:
                attempt = guard.enter(session, run)
                if attempt is not None:
                    raise self._already_done(run, attempt)
                yield
        except guard.FenceLower:
            raise self._lost_error() from None
        self._done_here.add(run.slot)

    def _leave(self, session: Any, run: guard.GuardedRun) -> None:
        self.check()
        guard.leave(session, run)

    def _already_done(self, run: guard.GuardedRun, attempt: int) -> SqlbeatError:
        name, slot = run.job_name, self.scheduled_for.isoformat()
        return SecondTransaction(name, slot) if run.slot in self._done_here else self.done_error(name, slot, attempt)

    def __repr__(self) -> str:
        return f"<run of {self.job_name!r} for {self.scheduled_for.isoformat()}, attempt {self.attempt}>"
