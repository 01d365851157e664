"""What Celery refuses before it becomes a task: asked about first, then failed, dropped or given back."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_sqlbeat.worker.answers import Away, Begun, Foreign, Stale
from celery_sqlbeat.worker.endings import End
from celery_sqlbeat.worker.gate import Gate
from celery_sqlbeat.worker.loops import Loop
from celery_sqlbeat.worker.refusals import ask_before_refusing
from celery_sqlbeat.worker.secrecy import hide_from_all

RUN, CLAIM = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"


NOBODY = "Task of kind 'nobody.has' never registered, please make sure it's imported."


class Desk:
    """A consumer that complains, and the gate as far as it is asked."""

    def __init__(self) -> None:
        self.complaints: list[tuple[str, BaseException]] = []
        self.asked: list[tuple[Any, ...]] = []
        self.returned: list[Any] = []
        self.consumer = SimpleNamespace(
            connection_errors=(OSError,),
            on_unknown_task=lambda body, message, error: self.complaints.append(("unknown", error)),
            on_invalid_task=lambda body, message, error: self.complaints.append(("invalid", error)),
            on_decode_error=lambda message, error: self.complaints.append(("decode", error)),
            create_task_handler=lambda: None,
        )
        loop = SimpleNamespace(post=lambda action: action())
        ask_before_refusing(self.consumer, cast(Gate, self), cast(Loop, loop))
        hide_from_all(self.consumer)

    def end_unbegun(self, *asked: Any) -> None:
        self.asked.append(asked)

    def give_back(self, unread: Any, is_of_others: bool) -> None:
        self.returned.append(unread)

    def answer(self, answer: Any) -> None:
        self.asked[-1][3](answer)


def message(**header: Any) -> Any:
    facts = {"v": 1, "store": "s", "namespace": "n", "run": RUN, "claim": CLAIM, "fence": 1}
    return SimpleNamespace(properties={}, headers={"id": RUN, "task": "nobody.has", "sqlbeat": {**facts, **header}})


def test_messages_of_others_are_refused_as_ever() -> None:
    desk, error = Desk(), KeyError("theirs")
    for headers in (None, {}, {"id": RUN, "task": "theirs"}, {"id": RUN, "sqlbeat": "forged"}):
        desk.consumer.on_unknown_task(None, SimpleNamespace(headers=headers, properties={}), error)
    assert desk.complaints == [("unknown", error)] * 4 and not desk.asked


@pytest.mark.parametrize("answer", [Begun(cast(Any, None)), Stale()])
def test_a_message_of_ours_is_refused_when_its_run_is_known(answer: Any) -> None:
    desk, error = Desk(), KeyError("nobody.has")
    desk.consumer.on_unknown_task(None, message(), error)
    ((header, how, told, _),) = desk.asked
    assert (header.run, header.claim, how, told.error) == (RUN, CLAIM, End.FAILURE, NOBODY)
    assert not desk.complaints
    desk.answer(answer)
    assert desk.complaints == [("unknown", error)] and not desk.returned


def test_a_body_that_cannot_be_read_is_named() -> None:
    desk = Desk()
    desk.consumer.on_invalid_task(None, message(), ValueError("pickle is not accepted"))
    desk.consumer.on_decode_error(message(), ValueError("no JSON"))
    assert [told.error for _, _, told, _ in desk.asked] == [
        "ValueError('pickle is not accepted')",
        "ValueError('no JSON')",
    ]


@pytest.mark.parametrize("answer", [Foreign("it is of store x"), Away("the database does not answer")])
def test_what_is_not_known_to_be_ours_goes_back(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.consumer.on_unknown_task(None, message(), KeyError("nobody.has"))
    desk.answer(answer)
    assert [each.id for each in desk.returned] == [RUN] and not desk.complaints
    assert answer.reason in caplog.text and CLAIM not in caplog.text


def test_a_header_of_a_later_version_goes_back() -> None:
    desk = Desk()
    desk.consumer.on_unknown_task(None, message(v=2), KeyError("nobody.has"))
    assert desk.returned and not desk.asked and not desk.complaints


def test_it_is_given_back_once() -> None:
    said: list[bool] = []
    desk, mine = Desk(), message(v=2)
    mine.reject_log_error = lambda _logger, _errors, requeue: said.append(requeue)
    desk.consumer.on_unknown_task(None, mine, KeyError("nobody.has"))
    (unread,) = desk.returned
    unread.reject(requeue=True)
    unread.reject(requeue=True)
    assert said == [True]
