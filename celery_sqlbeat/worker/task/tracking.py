"""One request of ours in Celery's hands: how its task ends, and when it is acknowledged.

Requests without our header are never watched.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from celery.exceptions import Ignore, Retry, TimeLimitExceeded, WorkerLostError

from celery_sqlbeat import environment, events
from celery_sqlbeat.celery_bridge.event_loop import Loop
from celery_sqlbeat.celery_bridge.message_header import Header
from celery_sqlbeat.celery_bridge.requests import (
    Instead,
    is_requeued,
    let_go,
    tell_failed,
    tell_nothing,
    tell_retried,
    tell_returned,
    tell_revoked,
    watch,
)
from celery_sqlbeat.celery_bridge.tasks import NO_REPORT, AttemptFailed, Report, seconds_until
from celery_sqlbeat.errors import MaxRuntimeExceeded, ProcessLost, RunCancelled
from celery_sqlbeat.model.retries import Decided, classes_of
from celery_sqlbeat.worker.lease import RunLease, Stop
from celery_sqlbeat.worker.results import AFTER_RETURN, FAILURES, OF_THE_BODY, TaskResult, how_it_ended
from celery_sqlbeat.worker.runtime import WorkerRuntime
from celery_sqlbeat.worker.task.body import BegunBefore, NotBegun, check_prerun
from celery_sqlbeat.worker.task.flags import write
from celery_sqlbeat.worker.task.shared_flags import SharedFlags
from celery_sqlbeat.worker.task.stops import TaskCancelled, TaskOverdue, TaskStopped

_STORING = "store the result of a task that returned, or send its callbacks"
_later = environment.Later()
_STOPS: dict[Stop | None, type[Ignore]] = {Stop.CANCELLED: TaskCancelled, Stop.OVERDUE: TaskOverdue}


class TrackedRequest:
    """The run of one request: `begin` once it has begun, `end` once its task is really gone."""

    def __init__(
        self,
        req: Any,
        header: Header,
        worker_runtime: WorkerRuntime,
        loop: Loop,
        flags: SharedFlags,
        stop: Callable[["TrackedRequest"], None],
        running: "set[TrackedRequest]",
        has_dropped: Callable[["TrackedRequest"], bool],
    ) -> None:
        """`stop` stops a task in the way of its pool; `running` has this one while it runs.

        `has_dropped` tells whether the pool has forgotten a task that no process has; any thread.
        """
        self.req = req
        self.header = header
        self.run_lease: RunLease | None = None
        self.is_over = False
        """Whether the task is gone; under `lock`, so that nobody stops the task after it."""
        self.lock = environment.lock()
        self.is_terminating = False  # whether somebody revoked or cancelled it while it ran
        self.is_cancelled = False  # whether Celery did, at the end of the worker or of its connection
        self._running, self._has_dropped = running, has_dropped
        self._worker_runtime, self._loop, self._flags, self._stop = worker_runtime, loop, flags, stop
        self.pid: Any = None  # the process or green thread that runs the task
        self.body_guard: Any = None  # of its body, in pools that run it in this process
        self._place: int | None = None
        self._decided: Decided | None = None  # whether another attempt follows, once that is known
        self._is_late = bool(req.task.acks_late)
        self._is_told = False  # whether Celery is being told of a failure that it does not know of
        self._is_settled = False  # whether the outcome is written, or known to be lost
        self._is_unreported = False
        """Whether a heartbeat has found what Celery had not reported: a success, or a lost task."""
        self._acknowledge: Callable[[], Any] | None = None
        watch(req, self, check_prerun)

    def begin(self, run_lease: RunLease) -> None:
        """Start tracking: the run has begun, and its body is about to."""
        self.run_lease = run_lease
        self._place = self._flags.take()
        run_lease.tell_extended(self._extended)
        self._running.add(self)
        again, store = self._worker_runtime.rules.again_of(run_lease), self._worker_runtime.store_facts
        write(self.req.request_dict, run_lease.run, self._place, again, store)
        run_lease.on_stop(self._must_stop)

    def end(self, how: TaskResult, error: Report = NO_REPORT) -> None:
        """Write how the task ended; only the first call counts."""
        # A process that retires or is killed right after its task reports nothing: its flags do.
        if how in (TaskResult.CHILD_LOST, TaskResult.STOPPED) and self._flags.has_succeeded(self._place):
            how, error = TaskResult.SUCCESS, NO_REPORT
        elif how in AFTER_RETURN and self._flags.has_returned(self._place):
            how, error = TaskResult.UNSTORED, Report(error.error or f"{how.value} while its result was stored")
            events.step_failed(step=_STORING, subject=f"{self.req.name}[{self.req.id}]", error=error.error or "")
        elif how is TaskResult.STOPPED and self.release_unbegun():
            return
        if how is TaskResult.SUCCESS and (attempt := self._flags.done_by(self._place)) is not None:
            how, error = TaskResult.DONE, Report(f"effects were done by attempt {attempt}")
        if how in OF_THE_BODY and (retries_at := self._flags.retries_at(self._place)) is not None:
            self.retry(max(0.0, retries_at - environment.unix_time()))
        elif self._leave() and self.run_lease is not None:
            self._worker_runtime.finish(self.run_lease, how, error, self._settled, self._decided)

    def retry(self, seconds: float) -> None:
        """Write that the task has sent itself again, by a retry of Celery's that is due then."""
        if self._leave() and self.run_lease is not None:
            self._worker_runtime.retrying(self.run_lease, seconds, self._settled)

    def not_begun(self) -> None:
        """Give the run back: its body never ran."""
        if self._leave() and self.run_lease is not None:
            self._worker_runtime.unstart(self.run_lease, self._settled)

    def release_unbegun(self) -> bool:
        """Give the run back unless its body has begun, and keep the body from beginning."""
        with self.lock:  # meanwhile the place cannot become another run's
            is_unbegun = not self.is_over and self._flags.forbid(self._place)
        if is_unbegun:
            self.not_begun()
        return is_unbegun

    def begin_body(self) -> bool:
        """Note that the body begins in this process; False where it may not."""
        lease = self.run_lease
        return lease is None or (lease.is_safe and self._flags.begin(self._place, environment.monotonic()))

    def stop(self) -> None:
        """Stop the task, in the way of its pool."""
        self._stop(self)

    @property
    def stop_error(self) -> type[Ignore]:
        """What is raised in the task, in pools that run it in this process."""
        return _STOPS.get(self.run_lease.stop, TaskStopped) if self.run_lease is not None else TaskStopped

    def _stops_as(self, why: Stop) -> bool:
        return self.run_lease is not None and self.run_lease.stop is why

    def _extended(self, until: float) -> None:
        """Note until when the lease is safe; end what is over and what Celery does not report."""
        self._flags.extend(self._place, until)
        was_unreported, has_succeeded = self._is_unreported, self._flags.has_succeeded(self._place)
        self._is_unreported = has_succeeded or self._has_dropped(self)
        if was_unreported and has_succeeded:  # Celery's event loop waits for the broker, or for a broken child's pipe
            _later.after(0.0, partial(self.end, TaskResult.SUCCESS))
        elif was_unreported and self._is_unreported:
            _later.after(0.0, self._release_dropped)

    def _release_dropped(self) -> None:
        if self.release_unbegun():
            events.noted(topic="the pool lost a task, whose run is given back", text=self.req.id)

    def _must_stop(self) -> None:
        (self._flags.cancel if self._stops_as(Stop.CANCELLED) else self._flags.set)(self._place)
        self.stop()

    def _leave(self) -> bool:
        with self.lock:
            was_over, self.is_over = self.is_over, True
        if not was_over:
            if self.run_lease is not None:
                self.run_lease.tell_extended(None)
            self._flags.release(self._place)
            self._running.discard(self)
            if not self._is_late:
                let_go(self.req)
        return not was_over

    def _settled(self, _is_recorded: bool) -> None:
        if self._is_late:
            self._loop.post(self._acknowledge_now)

    def _acknowledge_now(self) -> None:
        self._is_settled = True
        let_go(self.req)
        waiting, self._acknowledge = self._acknowledge, None
        if waiting is not None:
            waiting()

    # What Celery says of the request, as `RequestObserver` has it.

    @property
    def may_acknowledge(self) -> bool:
        """Whether Celery may acknowledge or reject the message now."""
        return not self._is_late or self._is_settled or self.run_lease is None

    def acknowledge_later(self, say: Callable[[], Any]) -> None:
        """Keep an acknowledgement until the outcome is written; only the first counts."""
        if self._acknowledge is None:
            self._acknowledge = say

    def cancels_by_celery(self) -> bool:
        """Return whether Celery itself can cancel the task; if not, stop it."""
        # Celery notes it only after it has killed the task, and a green thread ends in between.
        self.is_terminating = self.is_cancelled = True
        if self.body_guard is None or self.body_guard.is_killable:
            return True
        self.body_guard.stop()
        return False

    def accepted(self, pid: Any) -> None:
        """Note who runs the task."""
        self.pid = pid
        if self.run_lease is not None and self.run_lease.lost:
            self.stop()  # it was told to stop before there was a process to signal

    def succeeded(self) -> None:
        """Write the success."""
        self.end(TaskResult.SUCCESS)

    def failed(self, error: BaseException, exc_info: Any, is_reported: bool) -> Instead | None:
        """Write how this error ended the task; `is_reported`: its process has told hooks."""
        if self._is_told:
            return None
        if self._stops_as(Stop.OVERDUE) and not is_reported:
            return self._fail_overdue()
        if self._stops_as(Stop.CANCELLED) and (not is_reported or isinstance(error, RunCancelled)):
            self.end(TaskResult.REVOKED)
            return partial(tell_revoked, self.req)
        if isinstance(error, TimeLimitExceeded):  # its process is killed after this; `timed_out` follows
            return tell_nothing if self._has_returned() or self._tried_again_in(classes_of(error)) is not None else None
        if isinstance(error, AttemptFailed):
            self._decided = Decided(error.seconds)
            self.end(TaskResult.FAILURE, error.told)
        elif isinstance(error, Retry):
            self.retry(seconds_until(error.when, self.req.app))
        elif isinstance(error, BegunBefore):
            told = Report("the process that ran it has ended", errors=classes_of(WorkerLostError))
            return self._fail(TaskResult.CHILD_LOST, WorkerLostError(told.error), exc_info, told)
        elif isinstance(error, NotBegun):
            self.not_begun()
        else:
            how, told = how_it_ended(error, exc_info, self.is_terminating, self.is_cancelled)
            if how is TaskResult.FAILURE and self._flags.has_given_up(self._place):
                self._decided = Decided(None)
            if how in FAILURES and not is_reported:
                return self._fail(how, error, exc_info, told)
            self.end(how, told)
        return None

    def timed_out(self, seconds: float) -> Instead | None:
        """Write that the hard time limit has ended the task."""
        told = Report(f"TimeLimitExceeded({seconds:g})", errors=classes_of(TimeLimitExceeded))
        again, has_returned = self._tried_again_in(told.errors), self._has_returned()
        # In prefork the process is killed right after this.
        self._loop.post(lambda: self.end(TaskResult.TIME_LIMIT, told))
        if has_returned:
            return partial(tell_returned, self.req)
        if again is None:
            return None
        return partial(tell_retried, self.req, TimeLimitExceeded(seconds), None, again, told)

    def terminating(self) -> None:
        """Note that somebody ends the task while it runs."""
        self.is_terminating = True

    def revoked(self, is_expired: bool) -> None:
        """Write that the task was revoked, or had expired, before its body could begin."""
        self.end(TaskResult.EXPIRED if is_expired else TaskResult.REVOKED)

    def _tried_again_in(self, errors: tuple[str, ...]) -> float | None:
        """Return the seconds until another attempt, if this one failed so; None for the last."""
        if self.run_lease is None or self.is_over or self._has_returned():
            return None
        if self._decided is None:
            self._decided = Decided(self._worker_runtime.rules.tried_again_in(self.run_lease, errors))
        return self._decided.answer

    def _has_returned(self) -> bool:
        return not self.is_over and self._flags.has_returned(self._place)

    def _fail(self, how: TaskResult, error: BaseException, exc_info: Any, told: Report) -> Instead | None:
        """Write a failure that only this process knows, and return what Celery is to make of it.

        To Celery it is no failure where the body had returned, or another attempt follows.
        """
        seconds, has_returned = self._tried_again_in(told.errors), self._has_returned()
        self.end(how, told)
        if has_returned:
            return partial(tell_returned, self.req)
        if seconds is not None:
            return partial(tell_retried, self.req, error, exc_info, seconds, told)
        # Celery would return the message in silence, to a worker that finds its run ended.
        return partial(self._tell_failure, ProcessLost(told.error)) if is_requeued(self.req, error) else None

    def _fail_overdue(self) -> Instead | None:
        """Write that the task's process was killed for `max_runtime`."""
        run = self.run_lease.run if self.run_lease is not None else None
        error = MaxRuntimeExceeded(f"job {run.job_name!r} has {run.max_runtime:g} s" if run else "")
        again = self._fail(TaskResult.TIME_LIMIT, error, None, Report(repr(error), errors=classes_of(error)))
        return partial(self._tell_failure, error) if again is None else again

    def _tell_failure(self, error: Exception) -> None:
        self._is_told = True
        tell_failed(self.req, error)
