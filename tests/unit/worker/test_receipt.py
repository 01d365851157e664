"""What Celery refuses before it becomes a task.

Asked about first, then failed, dropped or given back.
"""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_sqlbeat.celery_bridge.event_loop import Loop
from celery_sqlbeat.celery_bridge.message_header import hide_from_all
from celery_sqlbeat.celery_bridge.tasks import NO_REPORT
from celery_sqlbeat.worker.admission import Admission
from celery_sqlbeat.worker.lease import StaleMessage, Started, StoreUnavailable, WrongStore
from celery_sqlbeat.worker.receipt import ask_before_refusing
from celery_sqlbeat.worker.results import TaskResult

RUN, CLAIM = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"


class Desk:
    """A consumer that complains, and the gate as far as it is asked."""

    def __init__(self) -> None:
        self.complaints: list[tuple[str, BaseException]] = []
        self.pending: list[tuple[Any, ...]] = []
        self.returned: list[Any] = []
        self.consumer = SimpleNamespace(
            connection_errors=(OSError,),
            on_unknown_task=lambda body, message, error: self.complaints.append(("unknown", error)),
            on_invalid_task=lambda body, message, error: self.complaints.append(("invalid", error)),
            on_decode_error=lambda message, error: self.complaints.append(("decode", error)),
            create_task_handler=lambda: None,
            strategies={"app.known": None},
        )
        loop = SimpleNamespace(post=lambda action: action())
        ask_before_refusing(self.consumer, cast(Admission, self), cast(Loop, loop))
        hide_from_all(self.consumer)

    def end_unbegun(self, *pending: Any) -> None:
        self.pending.append(pending)

    def return_message(self, unread: Any, is_of_others: bool) -> None:
        self.returned.append(unread)

    def answer(self, answer: Any) -> None:
        self.pending[-1][3](answer)


class Message(SimpleNamespace):
    """A message, and whether it was acknowledged."""

    headers: dict[str, Any]

    def ack_log_error(self, *_: Any) -> None:
        self.acknowledged.append(True)

    @property
    def payload(self) -> Any:
        if self.body is None:
            raise ValueError("it cannot be read")
        return self.body

    @payload.setter
    def payload(self, body: Any) -> None:
        self.body = body


def message(task: str | None = "nobody.has", **header: Any) -> Any:
    facts = {"v": 1, "store": "s", "namespace": "n", "run": RUN, "claim": CLAIM, "fence": 1}
    own = {} if task is None else {"id": RUN, "task": task}
    return Message(properties={}, headers={**own, "sqlbeat": {**facts, **header}}, acknowledged=[], body=None)


def test_messages_of_others_are_refused_as_ever() -> None:
    desk, error = Desk(), KeyError("theirs")
    for headers in (None, {}, {"id": RUN, "task": "theirs"}, {"id": RUN, "sqlbeat": "forged"}):
        desk.consumer.on_unknown_task(None, SimpleNamespace(headers=headers, properties={}), error)
    assert desk.complaints == [("unknown", error)] * 4 and not desk.pending


@pytest.mark.parametrize("answer", [Started(cast(Any, None)), StaleMessage()])
def test_a_slot_whose_task_is_unknown_here_is_given_back_and_its_message_is_forgotten(answer: Any) -> None:
    desk, mine = Desk(), message()
    desk.consumer.on_unknown_task(None, mine, KeyError("nobody.has"))
    ((header, how, told, _),) = desk.pending
    assert (header.run, header.claim, how, told) == (RUN, CLAIM, TaskResult.UNKNOWN_TASK, NO_REPORT)
    assert not desk.complaints and not mine.acknowledged
    desk.answer(answer)
    assert mine.acknowledged == [True] and not desk.complaints and not desk.returned


def test_a_worker_tells_of_an_unknown_task_once(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    for _ in range(3):
        desk.consumer.on_unknown_task(None, message(task="nobody.tells"), KeyError("nobody.tells"))
    assert caplog.text.count('task_name=nobody.tells effect="it is not registered in this worker') == 1


def test_a_message_of_the_older_protocol_has_its_task_in_its_body() -> None:
    desk, mine = Desk(), message(task=None)
    mine.payload = {"id": RUN, "task": "nobody.has", "retries": 2}
    desk.consumer.on_unknown_task(None, mine, KeyError("nobody.has"))
    ((header, how, _, _),) = desk.pending
    assert (header.run, header.celery_retries, how) == (RUN, 2, TaskResult.UNKNOWN_TASK)


@pytest.mark.parametrize(
    ("task", "how"),
    [("nobody.has", TaskResult.UNKNOWN_TASK), ("app.known", TaskResult.FAILURE), (None, TaskResult.FAILURE)],
)
def test_a_body_of_the_older_protocol_that_cannot_be_read_may_be_of_an_unknown_task(task: Any, how: TaskResult) -> None:
    desk, mine = Desk(), message(task=None)
    mine.headers["sqlbeat"]["task"] = task
    mine.properties = {"correlation_id": RUN}
    desk.consumer.on_decode_error(mine, ValueError("no such class"))
    assert [(pending[0].run, pending[1]) for pending in desk.pending] == [(RUN, how)]


def test_the_header_of_another_message_makes_none_of_ours() -> None:
    desk, mine, error = Desk(), message(), KeyError("nobody.has")
    mine.headers["id"] = CLAIM
    desk.consumer.on_unknown_task(None, mine, error)
    assert desk.complaints == [("unknown", error)] and not desk.pending


@pytest.mark.parametrize("answer", [Started(cast(Any, None)), StaleMessage()])
def test_celery_complains_of_what_cannot_be_read_when_its_run_is_known(answer: Any) -> None:
    desk, error = Desk(), ValueError("pickle is not accepted")
    desk.consumer.on_invalid_task(None, message(task="app.known"), error)
    assert not desk.complaints
    desk.answer(answer)
    assert desk.complaints == [("invalid", error)]


def test_a_body_that_cannot_be_read_is_named() -> None:
    desk = Desk()
    desk.consumer.on_invalid_task(None, message(task="app.known"), ValueError("pickle is not accepted"))
    desk.consumer.on_decode_error(message(task="app.known"), ValueError("no JSON"))
    assert [told.error for _, _, told, _ in desk.pending] == [
        "ValueError('pickle is not accepted')",
        "ValueError('no JSON')",
    ]


@pytest.mark.parametrize("answer", [WrongStore("it is of store x"), StoreUnavailable("the database does not answer")])
def test_what_is_not_known_to_be_ours_goes_back(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.consumer.on_unknown_task(None, message(), KeyError("nobody.has"))
    desk.answer(answer)
    assert [each.id for each in desk.returned] == [RUN] and not desk.complaints
    assert answer.reason in caplog.text and CLAIM not in caplog.text


def test_a_header_of_a_later_version_goes_back() -> None:
    desk = Desk()
    desk.consumer.on_unknown_task(None, message(v=2), KeyError("nobody.has"))
    assert desk.returned and not desk.pending and not desk.complaints


def test_a_message_of_an_unknown_task_is_given_back_once() -> None:
    said: list[bool] = []
    desk, mine = Desk(), message(v=2)
    mine.reject_log_error = lambda _logger, _errors, requeue: said.append(requeue)
    desk.consumer.on_unknown_task(None, mine, KeyError("nobody.has"))
    (unread,) = desk.returned
    unread.reject(requeue=True)
    unread.reject(requeue=True)
    assert said == [True]
