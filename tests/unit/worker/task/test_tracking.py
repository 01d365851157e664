"""What Celery says about a request, and what the worker makes of it."""

import gc
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery.exceptions import Ignore, Reject, Retry, Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker import state

from celery_sqlbeat.celery_bridge.message_header import HEADER, Header
from celery_sqlbeat.celery_bridge.tasks import Report, attempt_failed
from celery_sqlbeat.model.retries import Decided, classes_of
from celery_sqlbeat.worker.lease import LeaseTable, Stop
from celery_sqlbeat.worker.lease.batching import Timing
from celery_sqlbeat.worker.results import TaskResult
from celery_sqlbeat.worker.task import tracking
from celery_sqlbeat.worker.task.body import BegunBefore, NotBegun
from celery_sqlbeat.worker.task.shared_flags import SharedFlags
from celery_sqlbeat.worker.task.stops import TaskCancelled, TaskStopped
from celery_sqlbeat.worker.task.tracking import TrackedRequest
from tests.support.claims import SLOT
from tests.support.headers import CLAIM, RAW
from tests.support.stock import untyped


class Request:
    """As much of Celery's request as is wrapped."""

    def __init__(self, late: bool) -> None:
        self.id, self.name = CLAIM.run_id, "shop.add"
        self.task = SimpleNamespace(acks_late=late)
        self.request_dict: dict[str, Any] = {HEADER: RAW}
        self.app = SimpleNamespace(timezone="UTC")
        self.said: list[Any] = []
        self.revocations: list[tuple[str, bool]] = []
        self._already_cancelled = False
        self.dies: Callable[[], None] = lambda: None

    def on_accepted(self, pid: Any, time_accepted: float) -> None:
        self.said.append("accepted")

    def on_success(self, failed__retval__runtime: Any) -> None:
        failed, retval, _ = failed__retval__runtime
        if failed:
            self.on_failure(retval, return_ok=True)
        else:
            self.acknowledge()

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        error: Any = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(error, Reject):
            self.reject(requeue=untyped(error).requeue)
        else:
            self.acknowledge()

    def on_timeout(self, soft: bool, timeout: float) -> None:
        self.acknowledge()

    def terminate(self, pool: Any, signal: Any = None) -> None:
        self.said.append("terminated")

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        self.said.append("cancelled")
        self.dies()
        self._already_cancelled = True

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        self.revocations.append((reason, terminated))
        self.acknowledge()

    def acknowledge(self) -> None:
        self.said.append("acknowledged")

    def reject(self, requeue: bool = False) -> None:
        self.said.append(("rejected", requeue))


class FakeRuntime:
    """Writes down how tasks ended; `write` lets the database answer."""

    def __init__(self) -> None:
        self.ended: list[TaskResult] = []
        self.errors: list[str | None] = []
        self.retries: list[float] = []
        self.released = 0
        self.again: float | None = None
        """The seconds until another attempt, as every execution is told."""
        self.asked: list[tuple[str, ...]] = []
        self.decided: list[Decided | None] = []
        self.rules = self
        self.store_facts = None
        self._then: list[Any] = []

    def again_of(self, run_lease: Any) -> float | None:
        return self.again

    def tried_again_in(self, run_lease: Any, errors: tuple[str, ...]) -> float | None:
        self.asked.append(errors)
        return self.again

    def finish(self, run_lease: Any, end: TaskResult, told: Report, then: Any, decided: Decided | None) -> None:
        self.ended.append(end)
        self.errors.append(told.error)
        self.decided.append(decided)
        self._then.append(then)

    def retrying(self, run_lease: Any, seconds: float, then: Any) -> None:
        self.retries.append(seconds)
        self._then.append(then)

    def unstart(self, run_lease: Any, then: Any) -> None:
        self.released += 1
        self._then.append(then)

    def write(self) -> None:
        while self._then:
            then = self._then.pop(0)
            if then is not None:
                then(True)


class FakeLease:
    stop: Any = None
    lost, is_safe = False, True
    run = SimpleNamespace(
        job_name="j", scheduled_for=SLOT.scheduled_for, attempt=1, fence=7, lease_seconds=120.0, run_id="r", job_id="j"
    )

    def on_stop(self, callback: Any) -> None:
        self.stop = callback

    def tell_extended(self, callback: Any) -> None:
        self.told = callback
        if callback is not None:
            callback(1000.0)


class Loop:
    def post(self, action: Any) -> None:
        action()

    def run(self) -> None:
        """Everything is done at once."""


def execution_of(
    req: Request,
    worker_runtime: Any,
    stop: Any,
    running: set[TrackedRequest],
    marks: SharedFlags,
    has_dropped: Callable[[TrackedRequest], bool] = lambda _execution: False,
) -> TrackedRequest:
    header = Header(*(*(RAW[name] for name in ("store", "namespace", "run", "claim", "fence")), 0))
    return TrackedRequest(req, header, worker_runtime, Loop(), marks, stop, running, has_dropped)


class Bench:
    """An execution that has begun, also in a child or not, and what is around it."""

    def __init__(self, late: bool = True, in_child: bool = True, places: int = 8) -> None:
        self.req, self.worker_runtime, self.stopped = Request(late), FakeRuntime(), 0
        self.running: set[TrackedRequest] = set()
        self.marks = SharedFlags(places)
        self.is_dropped = False
        self.execution = execution_of(
            self.req, self.worker_runtime, self._stop, self.running, self.marks, lambda _execution: self.is_dropped
        )
        self.run_lease = FakeLease()
        begun: Any = self.run_lease
        self.execution.begin(begun)
        self.place = self.req.request_dict["delivery_info"]["sqlbeat_run"][-1]
        if in_child:
            assert self.marks.begin(self.place, 0.0)

    def _stop(self, _execution: TrackedRequest) -> None:
        self.stopped += 1

    def fails(self, error: BaseException) -> None:
        try:
            raise error
        except BaseException:
            self.req.on_failure(ExceptionInfo())


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "should_stop", None)
    monkeypatch.setattr(state, "should_terminate", None)


def test_a_success_is_acknowledged_once_it_is_written() -> None:
    bench = Bench()
    bench.req.on_success((0, "3", 0.1))
    assert bench.worker_runtime.ended == [TaskResult.SUCCESS] and bench.req.said == []
    bench.worker_runtime.write()
    assert bench.req.said == ["acknowledged"] and bench.running == set()


def test_a_failure_is_written_as_its_process_has_decided() -> None:
    bench = Bench()
    bench.worker_runtime.again = 9.0
    bench.fails(attempt_failed(KeyError("no"), 4.0, Report("KeyError('no')")))
    assert bench.worker_runtime.decided == [Decided(4.0)] and bench.worker_runtime.asked == []
    bench = Bench()
    bench.worker_runtime.again = 9.0
    bench.marks.give_up(bench.place)
    bench.fails(KeyError("no"))
    assert bench.worker_runtime.decided == [Decided(None)] and bench.worker_runtime.asked == []


def test_a_time_limit_is_decided_once_by_its_class() -> None:
    bench = Bench()
    bench.fails(TimeLimitExceeded(3))
    bench.req.on_timeout(soft=False, timeout=3)
    assert bench.worker_runtime.asked == [classes_of(TimeLimitExceeded)]
    assert bench.worker_runtime.decided == [Decided(None)]


def test_a_success_that_had_nothing_left_to_do_says_by_which_attempt_it_was_done() -> None:
    bench = Bench()
    bench.marks.note_done(bench.place, 3)
    bench.req.on_success((0, "3", 0.1))
    assert bench.worker_runtime.ended == [TaskResult.DONE]
    assert bench.worker_runtime.errors == ["effects were done by attempt 3"]


def test_an_early_acknowledgement_waits_for_nothing() -> None:
    bench = Bench(late=False)
    bench.req.acknowledge()
    assert bench.req.said == ["acknowledged"]


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (ValueError("no"), TaskResult.FAILURE),
        (SystemExit(3), TaskResult.FAILURE),
        (Ignore(), TaskResult.IGNORED),
        (Ignore("Replaced by new task"), TaskResult.REPLACED),
        (Reject("no"), TaskResult.REJECTED),
        (Reject("no", requeue=True), TaskResult.REQUEUED),
        (WorkerLostError("signal 9"), TaskResult.CHILD_LOST),
        (Terminated(15), TaskResult.REVOKED),
        (TaskStopped("lost"), TaskResult.IGNORED),  # the lease manager knows better: nobody asks what a lost run says
    ],
    ids=repr,
)
def test_how_it_ended_is_told_by_the_error(error: BaseException, end: TaskResult) -> None:
    bench = Bench()
    bench.fails(error)
    assert bench.worker_runtime.ended == [end]


def test_of_an_error_whose_repr_fails_the_type_is_kept() -> None:
    class Odd(Exception):
        def __repr__(self) -> str:
            raise RuntimeError

    bench = Bench()
    bench.fails(Odd("what it was told"))
    assert bench.worker_runtime.ended == [TaskResult.FAILURE] and bench.worker_runtime.errors == ["Odd"]


def test_a_rejected_message_goes_back_after_its_outcome_is_written() -> None:
    bench = Bench()
    bench.fails(Reject("no", requeue=True))
    assert bench.req.said == []
    bench.worker_runtime.write()
    assert bench.req.said == [("rejected", True)]


def test_only_the_first_word_about_an_end_counts() -> None:
    bench = Bench()
    bench.fails(ValueError("no"))
    bench.req.on_success((0, None, 0.1))
    assert bench.worker_runtime.ended == [TaskResult.FAILURE]
    bench.worker_runtime.write()
    assert bench.req.said == ["acknowledged"]


def test_a_time_limit_ends_it_when_celery_has_killed_the_process() -> None:
    bench = Bench()
    bench.fails(TimeLimitExceeded(1))
    assert bench.worker_runtime.ended == []
    bench.req.on_timeout(False, 1)
    assert bench.worker_runtime.ended == [TaskResult.TIME_LIMIT] and bench.worker_runtime.errors == [
        "TimeLimitExceeded(1)"
    ]


def test_a_soft_time_limit_by_itself_ends_nothing() -> None:
    bench = Bench(late=False)
    bench.req.on_timeout(soft=True, timeout=1)
    assert bench.worker_runtime.ended == []


@pytest.mark.parametrize(("when", "seconds"), [(30, 30.0), (None, 0.0), (1.5, 1.5), (-1, 0.0)])
def test_celerys_own_retry_keeps_the_run(when: Any, seconds: float) -> None:
    bench = Bench()
    bench.fails(Retry(when=when))
    assert bench.worker_runtime.retries == [seconds] and bench.worker_runtime.ended == []
    bench.worker_runtime.write()
    assert bench.req.said == ["acknowledged"]


@pytest.mark.parametrize("how", [None, ValueError("no"), Ignore()], ids=repr)
def test_a_task_that_goes_on_after_its_own_retry_keeps_the_run_however_it_ends(how: BaseException | None) -> None:
    bench = Bench()
    bench.marks.retry(bench.place, time.time() + 30)
    if how is None:
        bench.req.on_success((0, "3", 0.1))
    else:
        bench.fails(how)
    assert bench.worker_runtime.ended == [] and bench.worker_runtime.retries == [pytest.approx(30, abs=5)]
    bench.worker_runtime.write()
    assert bench.req.said == ["acknowledged"]


def test_a_success_that_nobody_tells_keeps_the_run_where_a_retry_was_sent() -> None:
    bench = Bench()
    bench.marks.retry(bench.place, time.time() - 30)
    bench.marks.succeed(bench.place)
    bench.fails(WorkerLostError("signal 9"))
    assert bench.worker_runtime.ended == [] and bench.worker_runtime.retries == [0.0]


def test_a_killed_process_is_a_failure_even_where_it_had_sent_a_retry() -> None:
    bench = Bench()
    bench.marks.retry(bench.place, time.time() + 30)
    bench.fails(WorkerLostError("signal 9"))
    assert bench.worker_runtime.ended == [TaskResult.CHILD_LOST] and bench.worker_runtime.retries == []


@pytest.mark.parametrize("error", [WorkerLostError("signal 15"), Terminated(15)], ids=repr)
def test_a_child_that_the_end_of_the_worker_took_along_has_not_failed(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    monkeypatch.setattr(state, "should_terminate", 0)
    bench.req.cancel(None)
    bench.fails(error)
    assert bench.worker_runtime.ended == [TaskResult.STOPPED]


def test_a_green_task_that_ends_while_celery_still_cancels_it_has_not_been_revoked() -> None:
    bench = Bench()
    bench.req.dies = lambda: bench.fails(Terminated(15))
    bench.req.cancel(None)
    assert bench.worker_runtime.ended == [TaskResult.STOPPED]


def test_a_message_that_was_revoked_or_expired_with_its_slot_in_hand_says_so() -> None:
    for expired, end in ((False, TaskResult.REVOKED), (True, TaskResult.EXPIRED)):
        bench = Bench()
        bench.req._announce_revoked("x", False, None, expired)
        assert bench.worker_runtime.ended == [end]


@pytest.mark.parametrize("error", [WorkerLostError("signal 15"), Terminated(15), TaskCancelled("stop")], ids=repr)
def test_a_cancelled_run_is_marked_stopped_and_revoked(error: BaseException) -> None:
    bench = Bench()
    must_stop = bench.run_lease.stop
    bench.run_lease.stop = Stop.CANCELLED
    must_stop()
    assert bench.stopped == 1 and bench.execution.stop_error is TaskCancelled
    assert bench.marks.is_cancelled(bench.place) and not bench.marks.is_set(bench.place)
    bench.fails(error)
    assert bench.worker_runtime.ended == [TaskResult.REVOKED] and bench.req.revocations == [("cancelled", True)]
    assert bench.req.said == []
    bench.worker_runtime.write()
    assert bench.req.said == ["acknowledged"]


def test_a_cancelled_task_that_fails_by_itself_is_to_celery_what_its_process_has_told() -> None:
    bench = Bench()
    bench.run_lease.stop = Stop.CANCELLED
    try:
        raise ValueError("no")
    except ValueError:
        bench.req.on_success((1, ExceptionInfo(), 0.1))
    assert bench.worker_runtime.ended == [TaskResult.FAILURE] and bench.req.revocations == []


def test_a_body_of_a_cancelled_run_does_not_begin() -> None:
    bench = Bench(in_child=False)
    bench.marks.cancel(bench.place)
    assert not bench.marks.begin(bench.place, 0.0)


def test_a_lost_run_is_marked_and_stopped() -> None:
    bench = Bench()
    bench.run_lease.stop()
    assert bench.stopped == 1


def test_what_was_lost_before_it_was_accepted_is_stopped_when_it_is() -> None:
    bench = Bench()
    bench.run_lease.lost = True
    bench.req.on_accepted(77, 0.0)
    assert bench.stopped == 1 and bench.execution.pid == 77 and bench.req.said == ["accepted"]


def test_what_never_ran_is_given_back_once() -> None:
    bench = Bench()
    bench.execution.not_begun()
    bench.execution.not_begun()
    assert bench.worker_runtime.released == 1 and bench.worker_runtime.ended == []


def test_a_body_that_may_not_begin_is_given_back_and_its_message_acknowledged_after_that() -> None:
    bench = Bench()
    bench.fails(NotBegun())
    assert bench.worker_runtime.released == 1 and not bench.worker_runtime.ended and not bench.req.said
    bench.worker_runtime.write()
    assert bench.req.said == ["acknowledged"]


def test_a_body_that_was_begun_by_a_process_that_is_gone_counts_as_killed_or_by_its_success() -> None:
    lost, done = Bench(), Bench()
    done.marks.succeed(done.place)
    for bench in (lost, done):
        bench.fails(BegunBefore())
        assert not bench.worker_runtime.released
    assert (lost.worker_runtime.ended, done.worker_runtime.ended) == ([TaskResult.CHILD_LOST], [TaskResult.SUCCESS])


def test_the_process_of_a_task_sees_until_when_its_lease_is_safe() -> None:
    bench = Bench()
    assert bench.marks.begin(bench.place, 999.9) and not bench.marks.begin(bench.place, 1000.0)
    bench.run_lease.told(2000.0)
    assert bench.marks.begin(bench.place, 1999.9)
    bench.execution.not_begun()
    assert bench.run_lease.told is None  # the place is somebody else's from here on


def test_a_success_counts_although_its_process_ended_before_it_was_heard() -> None:
    """A process that retires while its worker stops takes its reports along."""
    lost, stopped, limited = Bench(), Bench(), Bench()
    for bench in (lost, stopped, limited):
        bench.marks.succeed(bench.place)
    lost.fails(WorkerLostError("gone"))
    stopped.execution.end(TaskResult.STOPPED)
    limited.execution.end(TaskResult.TIME_LIMIT)
    assert (lost.worker_runtime.ended, lost.worker_runtime.errors) == ([TaskResult.SUCCESS], [None])
    assert stopped.worker_runtime.ended == [TaskResult.SUCCESS]
    assert limited.worker_runtime.ended == [TaskResult.TIME_LIMIT]


def test_a_success_that_celery_does_not_tell_is_told_by_the_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its event loop does not run while it waits for the broker."""
    later: list[Callable[[], None]] = []
    monkeypatch.setattr(tracking._later, "after", lambda _seconds, action: later.append(action))
    running, done = Bench(), Bench()
    done.marks.succeed(done.place)
    for bench in (running, done):
        bench.run_lease.told(2000.0)
    assert not later, "Celery may be about to tell it"
    for bench in (running, done):
        bench.run_lease.told(3000.0)
    [tell] = later
    tell()
    assert done.worker_runtime.ended == [TaskResult.SUCCESS] and done.run_lease.told is None
    assert running.running and running.marks.begin(running.place, 2999.9)
    done.fails(ValueError("told too late"))
    assert done.worker_runtime.ended == [TaskResult.SUCCESS]


def test_what_the_pool_has_dropped_is_given_back_by_the_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease is extended only while its task runs, or waits for its turn."""
    later: list[Callable[[], None]] = []
    monkeypatch.setattr(tracking._later, "after", lambda _seconds, action: later.append(action))
    waiting, begun = Bench(in_child=False), Bench()
    for bench in (waiting, begun):
        bench.run_lease.told(2000.0)
        bench.is_dropped = True
        bench.run_lease.told(3000.0)
    assert not later, "the pool may be about to take it, or to tell what became of it"
    waiting.is_dropped = False
    waiting.run_lease.told(4000.0)
    waiting.is_dropped = True
    waiting.run_lease.told(5000.0)
    assert not later
    for bench in (waiting, begun):
        bench.run_lease.told(6000.0)
    for each in later:
        each()
    assert waiting.worker_runtime.released == 1 and not waiting.running
    assert begun.worker_runtime.released == 0 and begun.running, "a process has it"


def test_what_no_child_has_begun_when_the_worker_stops_is_given_back_and_does_not_begin_then() -> None:
    bench = Bench(in_child=False)
    bench.execution.end(TaskResult.STOPPED)
    assert bench.worker_runtime.released == 1 and not bench.worker_runtime.ended and not bench.running
    assert not bench.marks.begin(bench.place, 0.0)


def test_what_a_child_has_begun_is_not_given_back_and_not_disturbed() -> None:
    bench = Bench()
    assert not bench.execution.release_unbegun()
    assert not bench.marks.is_set(bench.place) and bench.running
    bench.execution.end(TaskResult.STOPPED)
    assert bench.worker_runtime.ended == [TaskResult.STOPPED] and not bench.worker_runtime.released


def test_a_body_in_this_process_is_not_taken_for_one_that_no_child_has_begun() -> None:
    bench = Bench(in_child=False)
    bench.run_lease.told(time.monotonic() + 60)
    assert bench.execution.begin_body()
    bench.execution.end(TaskResult.STOPPED)
    assert bench.worker_runtime.ended == [TaskResult.STOPPED]


def test_a_body_that_was_given_back_does_not_begin_in_this_process() -> None:
    bench = Bench(in_child=False)
    bench.run_lease.told(time.monotonic() + 60)
    assert bench.execution.release_unbegun() and not bench.execution.begin_body()


def test_who_comes_after_a_run_in_its_place_may_begin() -> None:
    bench = Bench(places=1)
    bench.req.on_success((0, None, 0.1))
    assert bench.marks.take() == bench.place
    bench.marks.extend(bench.place, 1.0)
    assert not bench.execution.release_unbegun() and bench.marks.begin(bench.place, 0.0)


@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
def test_what_is_over_goes_at_once_and_waits_for_no_garbage_collector(late: bool) -> None:
    class Ending(FakeRuntime):
        def finish(self, run_lease: Any, *rest: Any) -> None:
            run_lease.ends()  # as the lease manager does
            super().finish(run_lease, *rest)

    req, worker_runtime, leases = Request(late), Ending(), LeaseTable(Timing(), lambda: 0.0)
    run: Any = SimpleNamespace(**vars(FakeLease.run), start_id="s", max_runtime=None)
    tracking = execution_of(req, worker_runtime, lambda _: None, set(), SharedFlags(8))
    run_lease = leases.add(run, 0, 0.0, ahead=False)
    assert run_lease.take()
    tracking.begin(run_lease)
    kept = [weakref.ref(one) for one in (req, tracking, run_lease)]
    gc.collect()
    gc.disable()
    try:
        req.on_success((0, None, 0.1))
        worker_runtime.write()
        leases.remove(run_lease)
        assert req.said == ["acknowledged"]
        del req, tracking, run_lease, worker_runtime
        assert [ref() for ref in kept] == [None] * 3
    finally:
        gc.enable()


def test_requests_of_one_class_are_watched_by_one_class() -> None:
    first, second = Bench().req, Bench().req
    assert type(first) is type(second) is not Request
    assert isinstance(first, Request)


def test_a_request_that_is_over_cannot_be_cancelled() -> None:
    bench = Bench(late=False)
    bench.req.on_success((0, None, 0.1))
    bench.req.cancel(None)  # its child runs another task by now
    assert "cancelled" not in bench.req.said
