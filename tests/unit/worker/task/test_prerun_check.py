"""The last look before a body."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_sqlbeat import environment
from celery_sqlbeat.celery_bridge.message_header import HEADER
from celery_sqlbeat.celery_bridge.requests import hand_over
from celery_sqlbeat.worker.task import flags
from celery_sqlbeat.worker.task.body import BegunBefore, NotBegun, check_prerun
from celery_sqlbeat.worker.task.shared_flags import SharedFlags
from tests.support.headers import RUN

FORGED = {HEADER: {"started": ["j", "slot", 1, 7, 0]}}


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> SharedFlags:
    made = SharedFlags(8)
    monkeypatch.setattr(flags, "_shared", [made])
    monkeypatch.setattr(environment, "monotonic", lambda: 100.0)
    return made


def trace(*given: Any) -> Any:
    return given


def request_of(marks: SharedFlags, until: float) -> dict[str, Any]:
    place = marks.take()
    marks.extend(place, until)
    request: dict[str, Any] = {"delivery_info": {"redelivered": False}}
    flags.write(request, cast(Any, RUN), place)
    return request


def test_a_body_begins_while_its_lease_is_safe(marks: SharedFlags) -> None:
    request = request_of(marks, 100.1)
    assert check_prerun(trace, "task", "run", request, "body") == ("task", "run", request, "body")
    with pytest.raises(NotBegun) as raised:
        check_prerun(trace, "task", "run", request_of(marks, 100.0), "body")
    assert raised.type is NotBegun


def test_a_body_that_another_process_has_begun_does_not_begin_again(marks: SharedFlags) -> None:
    request = request_of(marks, 100.1)
    check_prerun(trace, "task", "run", request, "body")
    with pytest.raises(BegunBefore):
        check_prerun(trace, "task", "run", request, "body")


@pytest.mark.parametrize("request_", [{}, {"delivery_info": None}, {"delivery_info": {}}, FORGED])
def test_a_message_without_a_run_of_ours_begins(marks: SharedFlags, request_: dict[str, Any]) -> None:
    assert check_prerun(trace, "task", "run", request_) == ("task", "run", request_)


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
    hand_over(req, Pool(), check_prerun)
    ((target, args),) = handed
    assert target is check_prerun and callable(args[0]) and args[1:] == ("x",) * 6
