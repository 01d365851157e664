"""One message of ours in the hands of Celery: sees how its task ends, and lets a late acknowledgement wait for that.

Hears what Celery says about this one request; requests without our header are never touched.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.exceptions import Retry

from celery_sqlbeat.errors import MaxRuntimeExceeded, ProcessLost
from celery_sqlbeat.worker import native
from celery_sqlbeat.worker.causes import AFTER_RETURN, FAILURES, OF_THE_BODY, how_it_ended
from celery_sqlbeat.worker.endings import End
from celery_sqlbeat.worker.failed import AttemptFailed
from celery_sqlbeat.worker.header import Header
from celery_sqlbeat.worker.holding import Holding, Stop
from celery_sqlbeat.worker.loops import Loop
from celery_sqlbeat.worker.marks import Marks
from celery_sqlbeat.worker.office import Office
from celery_sqlbeat.worker.reports import NO_REPORT, Report, seconds_until
from celery_sqlbeat.worker.retried import gives_back, say_nothing, tell_failed, tell_retried, tell_returned
from celery_sqlbeat.worker.running import write
from celery_sqlbeat.worker.stopped import TaskOverdue, TaskStopped
from celery_sqlbeat.worker.threshold import BegunBefore, NotBegun
from celery_sqlbeat.worker.watched import Instead, Seen, let_go, watch

logger = logging.getLogger(__name__)

_later = native.Later()


class Execution:
    """What becomes of one request. `begin` is called once its run has begun, `end` once its task is really gone."""

    def __init__(
        self,
        req: Any,
        header: Header,
        office: Office,
        loop: Loop,
        marks: Marks,
        stop: Callable[["Execution"], None],
        running: "set[Execution]",
    ) -> None:
        """`stop` stops a task in the way of its pool; `running` is where it is to be found while it runs."""
        self.req = req
        self.header = header
        self.holding: Holding | None = None
        self.is_over = False
        """Whether the task is gone; guarded by `lock`, so that nobody stops what came after it."""
        self.lock = native.lock()
        self.is_terminating = False
        """Whether somebody revoked or cancelled it while it ran."""
        self.is_cancelled = False
        """Whether that was Celery, for the end of the worker or of its connection: the slot is not to blame."""
        self._running = running
        self._office, self._loop, self._marks, self._stop = office, loop, marks, stop
        self.pid: Any = None
        """Who runs the task: a process, or a green thread."""
        self.window: Any = None
        """Where its body runs, in pools that run it in this process."""
        self._place: int | None = None
        self._again: float | None = None
        """The seconds until another attempt, should this one fail; None where it is the last one."""
        self._is_late = bool(req.task.acks_late)
        self._is_told = False
        """Whether Celery is being told of a failure that it does not know of itself."""
        self._is_settled = False
        """Whether the outcome is written, or known to be lost."""
        self._is_silent = False
        """Whether its process has noted its success, and a heartbeat later nobody had told it here."""
        self._acknowledge: Callable[[], Any] | None = None  # what Celery wanted to say to the broker, and waits
        watch(req, self, _SEEN)

    def begin(self, holding: Holding) -> None:
        """The run has begun; its body is about to."""
        self.holding = holding
        self._place = self._marks.take()
        holding.tell_extended(self._extended)
        self._running.add(self)
        self._again = self._office.tried_again_in(holding)
        write(self.req.request_dict, holding.run, self._place, self._again)
        holding.on_stop(self._must_stop)

    def end(self, how: End, error: Report = NO_REPORT) -> None:
        """The task is gone, and this is how; only the first word counts."""
        # A process that retires or is killed at once after its task takes the report along: what is done is done.
        if how in (End.CHILD_LOST, End.STOPPED) and self._marks.has_succeeded(self._place):
            how, error = End.SUCCESS, NO_REPORT
        elif how in AFTER_RETURN and self._marks.has_returned(self._place):
            how, error = End.UNSTORED, Report(error.error or f"{how.value} while its result was stored")
            logger.warning(
                "task %s[%s] has returned, and Celery could not store its result or send its callbacks: %s",
                self.req.name,
                self.req.id,
                error.error,
            )
        elif how is End.STOPPED and self.give_back_unbegun():
            return
        retries_at = self._marks.retries_at(self._place) if how in OF_THE_BODY else None
        if retries_at is not None:
            self.retry(max(0.0, retries_at - time.time()))
        elif self._leave() and self.holding is not None:
            then = self._settled if self._is_late else None
            self._office.finish(self.holding, how, error.error, error.traceback, then)

    def retry(self, seconds: float) -> None:
        """The task has sent itself again, by Celery's own retry, which is due in so many seconds."""
        if self._leave() and self.holding is not None:
            self._office.retrying(self.holding, seconds, self._settled)

    def not_begun(self) -> None:
        """The body never ran."""
        if self._leave() and self.holding is not None:
            self._office.unstart(self.holding, self._settled if self._is_late else None)

    def give_back_unbegun(self) -> bool:
        """Give the run back if nobody has begun its body, and see to it that nobody does."""
        with self.lock:  # while it is held, the place is nobody else's
            is_unbegun = not self.is_over and self._marks.forbid(self._place)
        if is_unbegun:
            self.not_begun()
        return is_unbegun

    def begin_body(self) -> bool:
        """Say that the body begins, in pools that run it in this process; False where it may not any more."""
        return self.holding is None or (self.holding.is_safe and self._marks.begin(self._place, time.monotonic()))

    def stop(self) -> None:
        """Have the task stopped, in the way of its pool."""
        self._stop(self)

    @property
    def stop_error(self) -> type[TaskStopped]:
        """What is raised in the task, in pools that run it in this process."""
        return TaskOverdue if self._is_overdue() else TaskStopped

    def _is_overdue(self) -> bool:
        return self.holding is not None and self.holding.stop is Stop.OVERDUE

    def _extended(self, until: float) -> None:
        """The lease is safe until then. A success is told here where Celery has not told it for a whole heartbeat."""
        self._marks.extend(self._place, until)
        if self._marks.has_succeeded(self._place):
            if self._is_silent:  # its event loop waits for the broker, or for ever in the pipe of a broken child
                _later.after(0.0, partial(self.end, End.SUCCESS))
            self._is_silent = True

    def _must_stop(self) -> None:
        self._marks.set(self._place)
        self.stop()

    @property
    def may_acknowledge(self) -> bool:
        """Whether Celery may say to the broker what it likes."""
        return not self._is_late or self._is_settled or self.holding is None

    def acknowledge_later(self, say: Callable[[], Any]) -> None:
        """Say this to the broker once the outcome is written; the first word counts for the broker, too."""
        if self._acknowledge is None:
            self._acknowledge = say

    def cancels_by_celery(self) -> bool:
        """Celery wants the task to end: whether it can do so itself. If not, the task is being stopped."""
        # Celery itself notes it only after it has killed the task, and a green thread ends in between.
        self.is_terminating = self.is_cancelled = True
        if self.window is None or self.window.is_killable:
            return True
        self.window.stop()  # Celery cannot end the tasks of such a pool, and would wait for their ends
        return False

    def _leave(self) -> bool:
        with self.lock:
            was_over, self.is_over = self.is_over, True
        if not was_over:
            if self.holding is not None:
                self.holding.tell_extended(None)
            self._marks.give_back(self._place)
            self._running.discard(self)
            if not self._is_late:
                let_go(self.req)
        return not was_over

    def _settled(self, _written: bool) -> None:
        if self._is_late:
            self._loop.post(self._say_to_broker)

    def _say_to_broker(self) -> None:
        self._is_settled = True
        let_go(self.req)
        waiting, self._acknowledge = self._acknowledge, None
        if waiting is not None:
            waiting()

    # What Celery says about the request, each called before what Celery itself does then.

    def _at_on_accepted(self, pid: Any, _time_accepted: float) -> None:
        self.pid = pid
        if self.holding is not None and self.holding.lost:
            self.stop()  # it came before there was anybody to stop

    def _at_on_success(self, failed__retval__runtime: Any, **_: Any) -> None:
        failed = failed__retval__runtime[0]
        if not failed:
            self.end(End.SUCCESS)

    def _at_on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Instead | None:
        """`return_ok`: the process of the task has told the result backend and the hooks already."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if self._is_told:
            return None
        if self._is_overdue() and not return_ok:
            return self._fail_overdue()
        if isinstance(error, TimeLimitExceeded):  # its process is killed after this; on_timeout follows
            return say_nothing if self._has_returned() or self._tried_again_in() is not None else None
        if isinstance(error, AttemptFailed):
            self.end(End.FAILURE, error.told)
        elif isinstance(error, Retry):
            self.retry(seconds_until(error.when, self.req.app))
        elif isinstance(error, BegunBefore):
            told = Report("the process that ran it has ended")
            return self._fail(End.CHILD_LOST, WorkerLostError(told.error), exc_info, told)
        elif isinstance(error, NotBegun):
            self.not_begun()
        else:
            how, told = how_it_ended(error, exc_info, self.is_terminating, self.is_cancelled)
            if how in FAILURES and not return_ok:  # else it was told where the body ran
                return self._fail(how, error, exc_info, told)
            self.end(how, told)
        return None

    def _tried_again_in(self) -> float | None:
        """The seconds until another attempt if this one fails now; None where it does not, or is the last one."""
        return None if self.holding is None or self.is_over or self._has_returned() else self._again

    def _has_returned(self) -> bool:
        return not self.is_over and self._marks.has_returned(self._place)

    def _fail(self, how: End, error: BaseException, exc_info: Any, told: Report) -> Instead | None:
        """Celery's main process would call this a failure: not where the body had returned, or another one follows."""
        seconds, has_returned = self._tried_again_in(), self._has_returned()
        self.end(how, told)
        if has_returned:
            return partial(tell_returned, self.req)
        if seconds is not None:
            return partial(tell_retried, self.req, error, exc_info, seconds, told)
        # Celery would give the message back and say nothing, and whoever takes it finds that its run has ended.
        return partial(self._tell_failure, ProcessLost(told.error)) if gives_back(self.req, error) else None

    def _fail_overdue(self) -> Instead | None:
        """Its process was killed for `max_runtime`: a failure as others are."""
        run = self.holding.run if self.holding is not None else None
        error = MaxRuntimeExceeded(f"job {run.job_name!r} has {run.max_runtime:g} s" if run else "")
        again = self._fail(End.TIME_LIMIT, error, None, Report(repr(error)))
        return partial(self._tell_failure, error) if again is None else again

    def _tell_failure(self, error: Exception) -> None:
        self._is_told = True
        tell_failed(self.req, error)

    def _at_on_timeout(self, soft: bool, timeout: float, **_: Any) -> Instead | None:
        if soft:
            return None
        told, seconds = Report(f"TimeLimitExceeded({timeout:g})"), self._tried_again_in()
        has_returned = self._has_returned()
        # In prefork the process is killed right after this.
        self._loop.post(lambda: self.end(End.TIME_LIMIT, told))
        if has_returned:
            return partial(tell_returned, self.req)
        if seconds is None:
            return None
        return partial(tell_retried, self.req, TimeLimitExceeded(timeout), None, seconds, told)

    def _at_terminate(self, *_: Any, **__: Any) -> None:
        self.is_terminating = True

    def _at_announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        if not terminated:  # before its body could begin
            self.end(End.EXPIRED if expired else End.REVOKED)


_SEEN: Seen = {
    "on_accepted": Execution._at_on_accepted,
    "on_success": Execution._at_on_success,
    "on_failure": Execution._at_on_failure,
    "on_timeout": Execution._at_on_timeout,
    "terminate": Execution._at_terminate,
    "_announce_revoked": Execution._at_announce_revoked,
}
