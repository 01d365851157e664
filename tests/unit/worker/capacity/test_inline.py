"""Slots of the pools whose tasks ask inside them.

Many tasks begin in one instant, when the answers to a batch come.
"""

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_sqlbeat.celery_bridge.pools import PoolCall
from celery_sqlbeat.worker.capacity.inline import run_call
from celery_sqlbeat.worker.task.body import NotBegun
from celery_sqlbeat.worker.task.stopping import InterruptibleBody
from celery_sqlbeat.worker.task.tracking import TrackedRequest


def call_of(accepted: Any) -> PoolCall:
    options = {"accept_callback": accepted, "callback": lambda result: None, "args": ()}
    return PoolCall(SimpleNamespace(getpid=lambda: 7), lambda: None, options)


def body_guard() -> InterruptibleBody:
    return cast(InterruptibleBody, SimpleNamespace(run=lambda body: body()))


def execution(**members: Any) -> TrackedRequest:
    request = SimpleNamespace(revoked=lambda: False)
    return cast(TrackedRequest, SimpleNamespace(**{"req": request, "begin_body": lambda: True, **members}))


def test_few_acknowledge_at_once_since_each_takes_a_connection() -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def accepted(pid: int, at: float) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.001)
        with lock:
            now[0] -= 1

    threads = [
        threading.Thread(target=run_call, args=(call_of(accepted), execution(), body_guard())) for _ in range(60)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= most[0] <= 4


def test_a_body_whose_lease_ended_while_its_message_was_acknowledged_does_not_begin() -> None:
    errors: list[BaseException] = []
    options = {
        "accept_callback": lambda pid, at: None,
        "error_callback": lambda info: errors.append(info.exception),
        "args": (),
    }
    call = PoolCall(SimpleNamespace(getpid=lambda: 7), lambda: pytest.fail("it began"), options)
    run_call(call, execution(begin_body=lambda: False), body_guard())
    assert [type(getattr(error, "exc", error)) for error in errors] == [NotBegun]


def test_a_task_that_could_not_be_accepted_is_given_back() -> None:
    released: list[str] = []

    def accepted(pid: int, at: float) -> None:
        raise OSError("no connection left")

    with pytest.raises(OSError, match="no connection left"):
        run_call(call_of(accepted), execution(not_begun=lambda: released.append("yes")), body_guard())
    assert released == ["yes"]
