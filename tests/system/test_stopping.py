"""A task is stopped from outside while its body runs, and nothing else in its thread is."""

import gc
import logging
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from celery_sqlbeat.worker.task.stopping import InterruptibleBody, is_safe, thread_guard
from celery_sqlbeat.worker.task.stops import TaskStopped

PATIENCE = 20.0


def body_guard() -> InterruptibleBody:
    execution: Any = SimpleNamespace(is_over=False, stop_error=TaskStopped, req=SimpleNamespace(id="1"))
    return thread_guard(execution)


def in_thread(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_body_that_runs_is_stopped() -> None:
    one, caught = body_guard(), []

    def body() -> None:
        one.open()
        try:
            while True:
                time.sleep(0.005)
        except TaskStopped as error:
            caught.append(error)

    thread = in_thread(lambda: one.run(body))
    while not one.is_open:
        time.sleep(0.001)
    one.stop()
    thread.join(PATIENCE)
    assert len(caught) == 1 and not thread.is_alive()


def test_a_body_that_has_not_begun_or_has_ended_is_left_alone() -> None:
    one, went_on = body_guard(), threading.Event()

    def body() -> None:
        one.stop()
        time.sleep(0.1)  # before task_prerun: nothing arrives here
        one.open()
        one.close()
        time.sleep(0.1)
        one.execution.is_over = True
        went_on.set()

    thread = in_thread(lambda: one.run(body))
    thread.join(PATIENCE)
    assert went_on.is_set()


@pytest.fixture
def no_gc_callbacks() -> Iterator[None]:
    """Take away what Hypothesis runs at each collection: a stop that arrives in it is swallowed."""
    kept = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(kept)


@pytest.mark.usefixtures("no_gc_callbacks")
def test_stops_in_the_middle_of_short_bodies_leave_their_thread_alive() -> None:
    ended, wrong = [0], []

    def work() -> None:
        for _ in range(300):
            one = body_guard()

            def body(one: InterruptibleBody = one) -> None:
                one.open()
                one.stop()
                sum(range(200))

            try:
                one.run(body)
            except TaskStopped:
                pass
            except BaseException as error:
                wrong.append(error)
            one.execution.is_over = True
            ended[0] += 1

    thread = in_thread(work)
    thread.join(PATIENCE)
    assert ended == [300] and not wrong


def test_nothing_is_raised_where_a_line_is_being_logged() -> None:
    seen = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(is_safe(sys._getframe()))

    logger = logging.Logger("apart")
    logger.addHandler(Handler())
    logger.warning("x")
    assert seen == [False] and is_safe(sys._getframe())


@pytest.mark.parametrize("kind", [Exception, TaskStopped])
def test_the_error_that_stops_a_task_is_ours_and_celerys(kind: type[Exception]) -> None:
    from celery.exceptions import Ignore

    from celery_sqlbeat import LeaseLost, SqlbeatError

    assert issubclass(TaskStopped, kind) and issubclass(TaskStopped, (Ignore, LeaseLost, SqlbeatError))
