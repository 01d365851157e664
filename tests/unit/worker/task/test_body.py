"""What the body of a task says of itself, as Celery's own tracer calls it."""

import math
import pickle
import uuid
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined]  # missing in the stubs
from celery import Celery, Task, signals
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Retry

from celery_sqlbeat.celery_bridge.tasks import MONITOR, AttemptFailed, Report, attempt_failed
from celery_sqlbeat.errors import AlreadyDone
from celery_sqlbeat.model.retries import Again, JobBackoff, question_of
from celery_sqlbeat.worker.task import flags
from celery_sqlbeat.worker.task.body import NotBegun, watch_bodies_of
from celery_sqlbeat.worker.task.shared_flags import SharedFlags
from celery_sqlbeat.worker.task.stops import TaskDone
from tests.support.headers import RUN
from tests.support.stock import untyped


class Own(Task[Any, Any]):
    """A task whose `__call__` catches errors."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except KeyError:
            return "caught"


class Bench:
    """An app whose tasks run here, as in a worker."""

    def __init__(self, marks: SharedFlags) -> None:
        marks.extend(place := marks.take(), math.inf)
        self.app = Celery("bench", backend="cache+memory://", broker="memory://", set_as_current=False)
        self.marks, self.place = marks, place
        self.heard: list[str] = []
        self.id = str(uuid.uuid4())

    def task(self, run: Callable[..., Any], **options: Any) -> Any:
        """Return a task of the app whose body is seen."""
        untyped(self.app).task(name="t", bind=True, shared=False, **options)(run)
        watch_bodies_of(self.app, "here")
        return self.app.tasks["t"]

    def trace(self, task: Any, again: Again = 2.0, ours: bool = True, **request: Any) -> Any:
        """Run it as Celery's worker does; returns the result and whether that is an error."""
        request = {"id": self.id, **request}
        if ours:
            flags.write(request, cast(Any, RUN), self.place, again)
        result, info, _, _ = build_tracer("t", task, app=self.app)(self.id, [], {}, request)
        error = result.exception if info else None
        return (error.exc if isinstance(error, ExceptionWithTraceback) else error or result), bool(info)

    @property
    def state(self) -> str:
        """What the result backend says."""
        return str(self.app.AsyncResult(self.id).state)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(flags.share())
    signals.task_failure.connect(_heard_failure := (lambda **_: made.heard.append("failure")), weak=False)
    signals.task_retry.connect(_heard_retry := (lambda **_: made.heard.append("retry")), weak=False)
    yield made
    signals.task_failure.disconnect(_heard_failure)
    signals.task_retry.disconnect(_heard_retry)


def fail(_self: Any) -> None:
    raise ValueError("no luck")


def unstorable(_self: Any) -> object:
    return object()


def test_an_attempt_that_is_tried_again_is_a_retry_to_celery(bench: Bench) -> None:
    error, failed = bench.trace(bench.task(fail), headers={MONITOR: "nightly"})
    assert failed and isinstance(error, AttemptFailed) and error.when == 2.0
    assert (error.told.error, bench.state, bench.heard) == ("ValueError('no luck')", "RETRY", ["retry"])
    assert "in fail" in str(error.told.traceback) and "in body" not in str(error.told.traceback)
    assert not bench.marks.has_returned(bench.place)


def test_the_last_attempt_is_a_failure_to_celery(bench: Bench) -> None:
    error, failed = bench.trace(bench.task(fail), again=None)
    assert failed and type(error) is ValueError
    assert (bench.state, bench.heard) == ("FAILURE", ["failure"])


def test_an_error_that_is_not_retried_is_a_failure_to_celery_and_the_worker_is_told_so(bench: Bench) -> None:
    backoff = JobBackoff("linear", "exponential", None, ["ValueError"], "j", "slot", 3, 2.0, 2.0, 600.0)
    error, failed = bench.trace(bench.task(fail), again=question_of(backoff, 0, 0.5))
    assert failed and type(error) is ValueError
    assert (bench.state, bench.heard) == ("FAILURE", ["failure"])
    assert bench.marks.has_given_up(bench.place)


def test_an_error_that_is_retried_waits_as_the_strategy_says(bench: Bench) -> None:
    backoff = JobBackoff("linear", "exponential", ["ValueError"], None, "j", "slot", 3, 2.0, 2.0, 600.0)
    error, failed = bench.trace(bench.task(fail), again=question_of(backoff, 1, 0.5))
    assert failed and isinstance(error, AttemptFailed) and error.when == error.seconds == 4.0
    assert error.told.errors[0] == "builtins.ValueError" and pickle.loads(pickle.dumps(error)).seconds == 4.0
    assert not bench.marks.has_given_up(bench.place)


def test_other_messages_are_left_as_they_are(bench: Bench) -> None:
    error, failed = bench.trace(bench.task(fail), ours=False)
    assert failed and type(error) is ValueError and bench.heard == ["failure"]


def test_a_body_that_returned_says_so_though_its_result_cannot_be_stored(bench: Bench) -> None:
    _, failed = bench.trace(bench.task(unstorable))
    assert failed and bench.marks.has_returned(bench.place)


def test_celerys_own_retry_stays_its_own(bench: Bench) -> None:
    def retry(self: Any) -> None:
        raise Retry(exc=ValueError("later"), when=untyped(7))

    error, _ = bench.trace(bench.task(retry))
    assert type(error) is Retry and error.when == 7 and not bench.marks.has_returned(bench.place)


def test_an_attempt_fails_only_when_autoretry_is_used_up(bench: Bench) -> None:
    task = bench.task(fail, autoretry_for=(ValueError,), max_retries=0)
    error, _ = bench.trace(task)
    assert isinstance(error, AttemptFailed) and "no luck" in str(error.told.error)


@pytest.mark.parametrize("error", [TaskDone, AlreadyDone])
def test_a_body_whose_effects_were_done_before_is_a_success_to_celery(bench: Bench, error: Any) -> None:
    def done(_self: Any) -> None:
        raise error("nightly", "noon", 3)

    result, failed = bench.trace(bench.task(done, autoretry_for=(KeyError,)))
    assert (result, failed, bench.state, bench.heard) == (None, False, "SUCCESS", [])
    assert bench.marks.has_returned(bench.place) and bench.marks.done_by(bench.place) == 3


def test_autoretry_has_nothing_to_try_again_where_the_effects_were_done(bench: Bench) -> None:
    def done(_self: Any) -> None:
        raise TaskDone("nightly", "noon", 3)

    assert bench.trace(bench.task(done, autoretry_for=(Exception,))) == (None, False)


def test_what_a_task_ignores_is_ignored(bench: Bench) -> None:
    def ignore(_self: Any) -> None:
        raise Ignore

    _, failed = bench.trace(bench.task(ignore))
    assert failed and bench.state == "PENDING" and bench.heard == []


def test_a_call_of_the_tasks_own_sees_the_errors_of_its_run(bench: Bench) -> None:
    def lose(_self: Any) -> None:
        raise KeyError("lost")

    assert bench.trace(bench.task(lose, base=Own)) == ("caught", False)
    assert bench.marks.has_returned(bench.place)


def test_a_body_that_calls_its_own_task_sees_its_errors(bench: Bench) -> None:
    def twice(self: Any, again: bool = True) -> str:
        if not again:
            raise KeyError("lost")
        try:
            self.run(again=False)
        except KeyError:
            return "caught"
        return "missed"

    assert bench.trace(bench.task(twice)) == ("caught", False)


def test_an_error_before_the_body_is_the_attempts(bench: Bench) -> None:
    class Before(Task[Any, Any]):
        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            raise ValueError("not yet")

    error, _ = bench.trace(bench.task(unstorable, base=Before))
    assert isinstance(error, AttemptFailed) and not bench.marks.has_returned(bench.place)


@pytest.mark.parametrize("told", ["its lease has ended", "its lease is lost"])
def test_a_body_does_not_begin_where_its_lease_is_over_by_then(bench: Bench, told: str) -> None:
    """Hooks and the result backend come between Celery's preparation and the body."""
    ran: list[bool] = []

    def body(self: Any) -> None:
        ran.append(flags.is_begun(self.request))

    def lose(**_: Any) -> None:
        if told == "its lease is lost":
            bench.marks.set(bench.place)
        else:
            bench.marks.extend(bench.place, 0.0)

    signals.task_prerun.connect(lose, weak=False)
    try:
        error, _ = bench.trace(task := bench.task(body))
    finally:
        signals.task_prerun.disconnect(lose)
    assert type(error) is NotBegun and not ran
    assert (bench.state, bench.heard) == ("PENDING", []) and not bench.marks.has_returned(bench.place)
    assert bench.trace(task, ours=False) == (None, False) and ran == [False]


def test_a_task_is_wrapped_once(bench: Bench) -> None:
    task = bench.task(fail)
    run = task.run
    watch_bodies_of(bench.app, "here")
    assert task.run is run


def test_a_failed_attempt_travels_to_the_main_process() -> None:
    failed = attempt_failed(ValueError("no"), 1.5, Report("ValueError('no')", "Traceback ..."))
    copy: Any = pickle.loads(pickle.dumps(failed))
    assert type(copy) is AttemptFailed and (untyped(copy.when), copy.told) == (1.5, failed.told)
    assert str(copy) == str(failed) == "the attempt failed, another one follows in 1.5s: ValueError('no')"
    assert repr(copy.exc) == "ValueError('no')"


def test_an_attempt_that_is_tried_again_checks_no_monitor_in(bench: Bench) -> None:
    seen: list[Any] = []
    look = lambda request, **_: seen.append(request.headers)  # noqa: E731
    signals.task_retry.connect(look, weak=False)
    try:
        bench.trace(bench.task(fail), headers={MONITOR: "nightly", "other": 1, "headers": {MONITOR: "nightly"}})
    finally:
        signals.task_retry.disconnect(look)
    assert seen == [{"other": 1, "headers": {}}]
