"""The last look before a body."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_sqlbeat.worker import running
from celery_sqlbeat.worker.header import HEADER
from celery_sqlbeat.worker.marks import Marks
from celery_sqlbeat.worker.threshold import BegunBefore, NotBegun, cross, hand_over
from tests.process.brokers import SLOT

RUN = SimpleNamespace(job_name="j", scheduled_for=SLOT.scheduled_for, attempt=1, fence=7, run_id="r", job_id="j")
FORGED = {HEADER: {"started": ["j", "slot", 1, 7, 0]}}


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> Marks:
    made = Marks(8)
    monkeypatch.setattr(running, "_shared", [made])
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    return made


def trace(*given: Any) -> Any:
    return given


def request_of(marks: Marks, until: float) -> dict[str, Any]:
    place = marks.take()
    marks.extend(place, until)
    request: dict[str, Any] = {"delivery_info": {"redelivered": False}}
    running.write(request, cast(Any, RUN), place)
    return request


def test_a_body_begins_while_its_lease_is_safe(marks: Marks) -> None:
    request = request_of(marks, 100.1)
    assert cross(trace, "task", "run", request, "body") == ("task", "run", request, "body")
    with pytest.raises(NotBegun) as raised:
        cross(trace, "task", "run", request_of(marks, 100.0), "body")
    assert raised.type is NotBegun


def test_a_body_that_another_process_has_begun_does_not_begin_again(marks: Marks) -> None:
    request = request_of(marks, 100.1)
    cross(trace, "task", "run", request, "body")
    with pytest.raises(BegunBefore):
        cross(trace, "task", "run", request, "body")


@pytest.mark.parametrize("request_", [{}, {"delivery_info": None}, {"delivery_info": {}}, FORGED])
def test_what_has_no_run_begins(marks: Marks, request_: dict[str, Any]) -> None:
    assert cross(trace, "task", "run", request_) == ("task", "run", request_)


def test_a_request_hands_over_the_look_with_the_task() -> None:
    handed: list[Any] = []

    class Request:
        id = _type = _request_dict = _body = _content_type = _content_encoding = "x"
        _task = SimpleNamespace(soft_time_limit=None, time_limit=None)
        _app = SimpleNamespace(use_fast_trace_task=False)
        on_accepted = on_timeout = on_success = on_failure = None
        time_limits = (None, None)

        def revoked(self) -> bool:
            return False

    class Pool:
        def apply_async(self, target: Any, args: Any, **options: Any) -> "Pool":
            handed.append((target, args))
            return self

    req: Any = Request()
    hand_over(req, Pool())
    ((target, args),) = handed
    assert target is cross and callable(args[0]) and args[1:] == ("x",) * 6
