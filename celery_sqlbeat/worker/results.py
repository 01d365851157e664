"""How a task ended, and what that makes of its run: pure rules; docs/outcomes.md is their table."""

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

from celery.exceptions import Ignore, Reject, Terminated, WorkerLostError

from celery_sqlbeat import environment
from celery_sqlbeat.celery_bridge.consumer import is_stopping
from celery_sqlbeat.celery_bridge.tasks import NO_REPORT, Report, report
from celery_sqlbeat.config.plugins import RETRY_STRATEGIES
from celery_sqlbeat.config.policy import RetryRule
from celery_sqlbeat.config.settings import Settings, require_functions
from celery_sqlbeat.errors import LeaseLost, MaxRuntimeExceeded
from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.model.lifecycle import (
    CANCELLED,
    DLQ,
    NOT_RETRIED,
    SKIPPED,
    Backoff,
    Ending,
    Waits,
    after_failure,
    after_lost_lease,
    after_success,
    left_to_strategy,
    released,
    released_unknown,
    tried_again_in,
)
from celery_sqlbeat.model.retries import EXPONENTIAL, Again, Decided, JobBackoff, classes_of, question_of
from celery_sqlbeat.worker.lease import RunLease


class TaskResult(Enum):
    """How a task ended, as its worker sees it; after Celery's own retry the attempt goes on."""

    SUCCESS = "success"
    REPLACED = "replaced"  # self.replace(): another task takes its place
    IGNORED = "ignored"  # raised Ignore
    DONE = "effects done"  # by an earlier attempt, which is told in place of an error
    UNSTORED = "result not stored"  # its body returned; Celery could not store the result
    FAILURE = "failure"  # an exception, the soft time limit, SystemExit
    TIME_LIMIT = "time limit"  # the hard one: its process was killed
    CHILD_LOST = "child lost"  # its process died
    REQUEUED = "requeued"  # raised Reject with requeue
    REJECTED = "rejected"  # raised Reject without
    REVOKED = "revoked"  # before or during the run
    EXPIRED = "expired"  # its message was too old when it was to begin
    STOPPED = "worker stopped"  # it ended with its worker; the slot is not to blame
    NOT_BEGUN = "not begun"
    LEFT = "left"  # the strategy of its task acknowledged the message; nobody reports more
    UNKNOWN_TASK = "unknown task"  # this worker does not know it; another one may


ELSEWHERE_SECONDS = 2.0  # on average, until a slot is sent again whose task this worker does not know


def backoff_of(settings: Settings) -> Backoff:
    """Return the backoff of failed slots that these settings ask for."""
    return Backoff(settings.retry_base, settings.retry_factor, settings.retry_max)


def outcome_of(
    end: TaskResult,
    run: StartedRun,
    backoff: Waits,
    random: Callable[[], float],
    error: str | None = None,
    traceback: str | None = None,
) -> Ending:
    """Return how a run ends whose task ended so."""
    if end is TaskResult.SUCCESS:
        return after_success()
    if end is TaskResult.DONE:
        return after_success(error)
    if end in (TaskResult.REPLACED, TaskResult.IGNORED):
        return after_success(end.value)
    if end is TaskResult.UNSTORED:
        return after_success(end.value, error)
    if end is TaskResult.REJECTED:
        return Ending(DLQ, end.value, None, 1, 0, error, traceback)
    if end is TaskResult.REVOKED:
        return Ending(CANCELLED, end.value)
    if end is TaskResult.EXPIRED:
        return Ending(SKIPPED, end.value)
    if end is TaskResult.STOPPED:
        return after_lost_lease(run.lost_leases, 0, end.value, counted=False)
    if end is TaskResult.LEFT:
        return left_to_strategy()
    if end is TaskResult.NOT_BEGUN:
        return released(end.value)
    if end is TaskResult.UNKNOWN_TASK:
        return released_unknown(ELSEWHERE_SECONDS * (0.5 + random()))
    return after_failure(run.failures, run.max_retries, backoff, random, error, traceback)


_REPLACED = "Replaced by new task"  # what Celery's Task.replace says

AFTER_RETURN = (
    TaskResult.IGNORED,
    TaskResult.FAILURE,
    TaskResult.TIME_LIMIT,
    TaskResult.CHILD_LOST,
    TaskResult.STOPPED,
    TaskResult.REVOKED,
)
"""Ends after which the body may have returned; what came after its return is no part of the run."""

FAILURES = (TaskResult.FAILURE, TaskResult.TIME_LIMIT, TaskResult.CHILD_LOST)
"""Celery is told of these as of its own retries, where another attempt follows."""

OF_THE_BODY = (TaskResult.SUCCESS, TaskResult.IGNORED, TaskResult.FAILURE, TaskResult.UNSTORED)
"""Ends of a body that may have sent its own retry before, which goes on with the attempt."""


def how_it_ended(
    error: BaseException, exc_info: Any, is_terminating: bool, is_cancelled: bool
) -> tuple[TaskResult, Report]:
    """Tell how a task ended by the error that Celery reports of it.

    `is_terminating`: somebody revoked or cancelled it while it ran; `is_cancelled`: Celery did.
    """
    told = report(error, exc_info)
    if isinstance(error, Reject):
        return _how_rejected(error), told
    if isinstance(error, LeaseLost) and is_terminating:
        return TaskResult.STOPPED, NO_REPORT
    if isinstance(error, Ignore):
        return (TaskResult.REPLACED if str(error) == _REPLACED else TaskResult.IGNORED), NO_REPORT
    if isinstance(error, Terminated) or (is_terminating and isinstance(error, WorkerLostError | SystemExit)):
        return (TaskResult.STOPPED if is_cancelled else TaskResult.REVOKED), NO_REPORT
    if isinstance(error, WorkerLostError):
        if is_stopping():
            return TaskResult.STOPPED, NO_REPORT  # the signal that stops the worker reached its children, too
        return TaskResult.CHILD_LOST, told
    if is_terminating and is_stopping():
        return TaskResult.STOPPED, NO_REPORT  # in solo, Celery's own cancelling raises inside the body
    return TaskResult.FAILURE, told


def _how_rejected(error: Reject) -> TaskResult:
    # Celery rejects a message, too, where it could not send what `self.retry()` asked for.
    is_unsent_retry = isinstance(error.reason, Exception)  # type: ignore[attr-defined]  # not in its stubs
    is_requeued = error.requeue or is_unsent_retry  # type: ignore[attr-defined]
    return TaskResult.REQUEUED if is_requeued else TaskResult.REJECTED


class OutcomeRules:
    """How the runs of one worker end, by its settings. Safe in any thread."""

    def __init__(self, settings: Settings) -> None:
        """Load the strategies that the settings name; SettingError where one is missing."""
        require_functions(settings, RETRY_STRATEGIES)
        self._backoff = backoff_of(settings)
        self._strategy = settings.retry_strategy

    def ending(
        self,
        run_lease: RunLease,
        end: TaskResult,
        error: str | None,
        traceback: str | None,
        errors: tuple[str, ...] = (),
        decided: Decided | None = None,
    ) -> Ending:
        """Return how a run ends whose task ended so.

        `errors`: the classes of its error. `decided`: what was decided where it was raised.
        """
        backoff = decided or self._waits(run_lease, () if end is TaskResult.REQUEUED else errors)
        return outcome_of(end, run_lease.run, backoff, partial(_jitter, run_lease), error, traceback)

    def again_of(self, run_lease: RunLease) -> Again:
        """Return what tells the process of a body whether another attempt follows it."""
        run, backoff = run_lease.run, self._waits(run_lease, ())
        if isinstance(backoff, JobBackoff):
            return question_of(backoff, run.failures, _jitter(run_lease))
        return tried_again_in(run.failures, run.max_retries, backoff, partial(_jitter, run_lease))

    def tried_again_in(self, run_lease: RunLease, errors: tuple[str, ...]) -> float | None:
        """Return the seconds until another attempt if this one fails so; None for the last one."""
        run, backoff = run_lease.run, self._waits(run_lease, errors)
        return tried_again_in(run.failures, run.max_retries, backoff, partial(_jitter, run_lease))

    def overdue(self, run_lease: RunLease, reason: str) -> Ending:
        """Return how a run ends whose body took too long."""
        run, jitter = run_lease.run, partial(_jitter, run_lease)
        backoff = self._waits(run_lease, classes_of(MaxRuntimeExceeded))
        ending = after_failure(run.failures, run.max_retries, backoff, jitter, reason)
        return ending if ending.reason == NOT_RETRIED else ending._replace(reason=reason)

    def _waits(self, run_lease: RunLease, errors: tuple[str, ...]) -> Waits:
        rule = run_lease.retry
        if rule is None:
            if self._strategy == EXPONENTIAL:
                return self._backoff
            rule = RetryRule()
        run, (base, factor, longest) = run_lease.run, self._backoff
        return JobBackoff(
            strategy=rule.strategy or self._strategy,
            default=self._strategy,
            retry_on=rule.retry_on,
            dead_on=rule.dead_on,
            job_name=run.job_name,
            slot=f"{run.job_id} {run.scheduled_for.isoformat()} {run.kind}",
            max_retries=run.max_retries,
            base=base,
            factor=factor,
            longest=longest,
            errors=errors,
        )


def _jitter(run_lease: RunLease) -> float:
    """Return the same jitter for a run each time, so that two answers agree."""
    if run_lease.luck is None:
        run_lease.luck = environment.chance()
    return run_lease.luck
