"""What the process of a body notes of the messages that the body sends."""

import threading
import time
from typing import Any, cast

import pytest
from celery.app.task import Context
from celery.signals import after_task_publish

from celery_sqlbeat.celery_bridge.message_header import HEADER
from celery_sqlbeat.worker.task import flags
from celery_sqlbeat.worker.task.shared_flags import SharedFlags
from tests.support.headers import RAW, RUN

ITS_RETRY: dict[str, Any] = {"id": RAW["run"], "retries": 2, "eta": None}


class Body:
    """A task of ours that runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        flags.share()
        self.marks = SharedFlags(8)
        self.place = self.marks.take()
        request: dict[str, Any] = {"id": RAW["run"], "retries": 1, HEADER: RAW}
        flags.write(request, cast(Any, RUN), self.place)
        monkeypatch.setattr(flags, "_shared", [self.marks])
        monkeypatch.setattr(flags, "_bodies", [])
        self.entered = flags.enter(Context(request))

    def send(self, headers: Any, body: Any = ()) -> float | None:
        """Send a message; returns for when a retry is noted, in seconds from now."""
        after_task_publish.send(sender="shop.add", headers=headers, body=body)
        at = self.marks.retries_at(self.place)
        return None if at is None else at - time.time()


@pytest.fixture
def body(monkeypatch: pytest.MonkeyPatch) -> Body:
    return Body(monkeypatch)


def test_a_retry_of_itself_is_noted_with_its_eta(body: Body) -> None:
    assert body.send({**ITS_RETRY, HEADER: RAW}) == pytest.approx(0, abs=5)
    assert body.send({**ITS_RETRY, HEADER: RAW, "eta": "2090-01-01T00:00:00+00:00"}) == pytest.approx(
        3786912000 - time.time(), abs=5
    )


def test_a_retry_that_another_thread_sends_is_noted_too(body: Body) -> None:
    thread = threading.Thread(target=body.send, args=({**ITS_RETRY, HEADER: RAW},))
    thread.start()
    thread.join()
    assert body.marks.retries_at(body.place) is not None


def test_of_two_tries_of_a_run_the_later_one_has_sent_it(body: Body, monkeypatch: pytest.MonkeyPatch) -> None:
    later = body.entered._replace(retries=2, place=body.marks.take())
    monkeypatch.setattr(flags, "_bodies", [later, body.entered])
    assert body.send({**ITS_RETRY, HEADER: RAW, "retries": 3}) is None
    assert body.marks.retries_at(later.place) is not None


def test_what_is_sent_after_the_body_has_ended_is_no_retry(body: Body) -> None:
    flags.leave(body.entered)
    assert body.send({**ITS_RETRY, HEADER: RAW}) is None


def test_a_retry_in_the_older_protocol_is_noted_too(body: Body) -> None:
    assert body.send({HEADER: RAW}, body={**ITS_RETRY, "eta": "2090-01-01T00:00:00"}) == pytest.approx(
        3786912000 - time.time(), abs=5
    )


@pytest.mark.parametrize(
    "headers",
    [None, {}, ITS_RETRY, {**ITS_RETRY, HEADER: RAW, "id": "another"}, {**ITS_RETRY, HEADER: RAW, "retries": 1}],
    ids=["none", "empty", "without the claim", "another task", "no retry"],
)
def test_what_is_no_retry_of_itself_is_not(body: Body, headers: Any) -> None:
    assert body.send(headers) is None
