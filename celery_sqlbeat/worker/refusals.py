"""Messages of ours that Celery refuses before they become a task: it does not know the task, or cannot read the body.

Celery drops them for good. Here the attempt fails with that reason, unless the message is somebody else's.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from celery.exceptions import NotRegistered

from celery_sqlbeat.worker.answers import Answer, Away, Foreign
from celery_sqlbeat.worker.endings import End
from celery_sqlbeat.worker.gate import Gate
from celery_sqlbeat.worker.header import HEADER, Header, Newer, read
from celery_sqlbeat.worker.loops import Loop
from celery_sqlbeat.worker.reports import Report, text_of
from celery_sqlbeat.worker.secrecy import shown

logger = logging.getLogger(__name__)

COMPLAINTS = {"on_unknown_task": 1, "on_invalid_task": 1, "on_decode_error": 0}
"""Methods of Celery's consumer that refuse a message, and at which place they are given it; the error comes next."""


class Unread:
    """Such a message, where the gate expects one of Celery's requests."""

    def __init__(self, consumer: Any, message: Any) -> None:
        self.message = message
        self.id, self.name = str(message.headers.get("id")), str(message.headers.get("task"))
        self.connection_errors = consumer.connection_errors
        self.acknowledged = False

    def reject(self, requeue: bool) -> None:
        """Give it back to the broker, or not."""
        if not self.acknowledged:
            self.acknowledged = True
            self.message.reject_log_error(logger, self.connection_errors, requeue)

    def send_event(self, *_: Any, **__: Any) -> None:
        """Nobody was told that it came."""


def ask_before_refusing(consumer: Any, gate: Gate, loop: Loop) -> None:
    """Let this consumer refuse no message of ours before it is known whose it is."""
    for name, place in COMPLAINTS.items():
        setattr(consumer, name, _asking(getattr(consumer, name), place, consumer, gate, loop))


def _asking(complain: Callable[..., Any], place: int, consumer: Any, gate: Gate, loop: Loop) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        message, error = args[place], args[place + 1]
        headers = message.headers
        found = read(shown(headers[HEADER]), headers) if isinstance(headers, dict) and HEADER in headers else None
        if not isinstance(found, Header | Newer):
            return complain(*args)
        unread, refusal = Unread(consumer, message), _refusal(error, headers)

        def give_back(reason: str, is_of_others: bool = True) -> None:
            logger.error("message %s (task %s) goes back to the broker: %s", unread.id, unread.name, reason)
            gate.give_back(unread, is_of_others)

        def complain_now() -> None:
            try:
                raise error  # Celery's complaint shows the error that is being handled
            except type(error):
                complain(*args)

        def heard(answer: Answer) -> None:
            if isinstance(answer, Foreign | Away):
                loop.post(partial(give_back, answer.reason, isinstance(answer, Foreign)))
            else:
                loop.post(complain_now)

        if isinstance(found, Newer):
            give_back(f"its sqlbeat header is of version {found.version}; upgrade celery-sqlbeat here")
        else:
            gate.end_unbegun(found, End.FAILURE, Report(text_of(refusal)), heard)
        return None

    return call


def _refusal(error: BaseException, headers: Any) -> BaseException:
    if isinstance(error, KeyError):  # all that Celery says of a task that is in no registry
        unknown: BaseException = NotRegistered(headers.get("task"))
        return unknown
    return error
