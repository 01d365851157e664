"""Slots of the pools whose tasks ask inside them: many tasks begin in one instant, when the answers to a batch come."""

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_sqlbeat.worker.call import Call
from celery_sqlbeat.worker.execution import Execution
from celery_sqlbeat.worker.threshold import NotBegun
from celery_sqlbeat.worker.window import Window


def call_of(accepted: Any) -> Call:
    options = {"accept_callback": accepted, "callback": lambda result: None, "args": ()}
    return Call(SimpleNamespace(getpid=lambda: 7), lambda: None, options)


def window() -> Window:
    return cast(Window, SimpleNamespace(run=lambda body: body()))


def execution(**members: Any) -> Execution:
    request = SimpleNamespace(revoked=lambda: False)
    return cast(Execution, SimpleNamespace(**{"req": request, "begin_body": lambda: True, **members}))


def test_few_acknowledge_at_once_since_each_takes_a_connection() -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def accepted(pid: int, at: float) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.001)
        with lock:
            now[0] -= 1

    threads = [threading.Thread(target=call_of(accepted).run, args=(execution(), window())) for _ in range(60)]
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
    call = Call(SimpleNamespace(getpid=lambda: 7), lambda: pytest.fail("it began"), options)
    call.run(execution(begin_body=lambda: False), window())
    assert [type(getattr(error, "exc", error)) for error in errors] == [NotBegun]


def test_a_task_that_could_not_be_accepted_is_given_back() -> None:
    given_back: list[str] = []

    def accepted(pid: int, at: float) -> None:
        raise OSError("no connection left")

    with pytest.raises(OSError, match="no connection left"):
        call_of(accepted).run(execution(not_begun=lambda: given_back.append("yes")), window())
    assert given_back == ["yes"]
