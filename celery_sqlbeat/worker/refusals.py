"""Messages of ours that Celery refuses before they become a task: it does not know the task, or cannot read the body.

Celery drops them for good. Here a slot whose task this worker does not know is given back, for a worker that knows it,
and nothing is counted; what cannot be read fails its attempt with that reason. Unless the message is somebody else's.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from celery_sqlbeat.worker.answers import Answer, Away, Foreign
from celery_sqlbeat.worker.endings import End
from celery_sqlbeat.worker.gate import Gate
from celery_sqlbeat.worker.header import HEADER, Header, Newer, read
from celery_sqlbeat.worker.loops import Loop
from celery_sqlbeat.worker.reports import NO_REPORT, Report, text_of
from celery_sqlbeat.worker.secrecy import shown

logger = logging.getLogger(__name__)

COMPLAINTS = {"on_unknown_task": 1, "on_invalid_task": 1, "on_decode_error": 0}
"""Methods of Celery's consumer that refuse a message, and at which place they are given it; the error comes next."""


_UNKNOWN = "on_unknown_task"
_told: set[str] = set()  # tasks, each of which is spoken of once


class Unread:
    """Such a message, where the gate expects one of Celery's requests."""

    def __init__(self, consumer: Any, message: Any, request: Mapping[str, Any]) -> None:
        self.message = message
        self.id, self.name = str(request.get("id")), str(request.get("task"))
        self.connection_errors = consumer.connection_errors
        self.acknowledged = False

    def reject(self, requeue: bool) -> None:
        """Give it back to the broker, or not."""
        if not self.acknowledged:
            self.acknowledged = True
            self.message.reject_log_error(logger, self.connection_errors, requeue)

    def acknowledge(self) -> None:
        """Let the broker forget it."""
        if not self.acknowledged:
            self.acknowledged = True
            self.message.ack_log_error(logger, self.connection_errors)

    def send_event(self, *_: Any, **__: Any) -> None:
        """Nobody was told that it came."""


def ask_before_refusing(consumer: Any, gate: Gate, loop: Loop) -> None:
    """Let this consumer refuse no message of ours before it is known whose it is."""
    for name, place in COMPLAINTS.items():
        setattr(consumer, name, _asking(name, getattr(consumer, name), place, consumer, gate, loop))


def _asking(
    name: str, complain: Callable[..., Any], place: int, consumer: Any, gate: Gate, loop: Loop
) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        message, error = args[place], args[place + 1]
        headers = message.headers
        if not isinstance(headers, dict) or HEADER not in headers:
            return complain(*args)
        request = _request_of(message, headers)
        found = read(shown(headers[HEADER]), request)
        if not isinstance(found, Header | Newer):
            return complain(*args)
        if isinstance(found, Header) and found.forgotten and gate.office.is_for_anybody(found):
            return complain(*args)
        unread = Unread(consumer, message, request)
        task = request.get("task")
        is_unknown = name == _UNKNOWN or (task is not None and task not in consumer.strategies)

        def give_back(reason: str, is_of_others: bool = True) -> None:
            logger.error("message %s (task %s) goes back to the broker: %s", unread.id, unread.name, reason)
            gate.give_back(unread, is_of_others)

        def let_go() -> None:
            """The slot is given back, or was not this message's to run."""
            if is_unknown:
                unread.acknowledge()
                return
            try:
                raise error  # Celery's complaint shows the error that is being handled
            except type(error):
                complain(*args)

        def heard(answer: Answer) -> None:
            if isinstance(answer, Foreign | Away):
                loop.post(partial(give_back, answer.reason, isinstance(answer, Foreign)))
            else:
                loop.post(let_go)

        if isinstance(found, Newer):
            give_back(f"its sqlbeat header is of version {found.version}; upgrade celery-sqlbeat here")
        elif is_unknown:
            _tell(unread.name)
            gate.end_unbegun(found, End.UNKNOWN_TASK, NO_REPORT, heard)
        else:
            gate.end_unbegun(found, End.FAILURE, Report(text_of(error)), heard)
        return None

    return call


def _request_of(message: Any, headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """The id, the task and the retries of a message; the older protocol has them in its body, if that can be read."""
    if "id" in headers:
        return headers
    try:
        payload = message.payload
    except Exception:  # it is refused for that
        payload = None
    if isinstance(payload, Mapping):
        return payload
    own = headers[HEADER]
    task = own.get("task") if isinstance(own, Mapping) else None
    return {"id": (message.properties or {}).get("correlation_id"), "task": task}


def _tell(task: str) -> None:
    if task not in _told:
        _told.add(task)
        logger.warning(
            "task %s is not registered in this worker: its slots go on to workers that know it, and nothing is counted "
            "(said once per task)",
            task,
        )
