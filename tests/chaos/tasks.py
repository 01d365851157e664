"""The tasks of the storm.

Each writes down when its body begins, that it lives, and how it ended.
"""

import os
import random
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from celery import Task, shared_task
from celery_batches import Batches

from celery_sqlbeat import current_run
from celery_sqlbeat.worker.task import flags
from tests.chaos.witnesses import STEP, write

WITNESS = os.environ.get("CHAOS_WITNESS", "witness.log")
IS_PLAIN = "CHAOS_PLAIN" in os.environ
"""Whether this worker has no extension."""
_check_lease = flags.is_safe


def _check_and_note(request: Any) -> bool:
    """Note on the request when the last check of its lease, right before its body, was over."""
    is_safe = _check_lease(request)
    request.chaos_checked = time.monotonic()
    return is_safe


flags.is_safe = _check_and_note


def task(name: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a task of every app, bound to itself."""
    made: Callable[[Callable[..., Any]], Any] = shared_task(name=name, **options)
    return made


def _facts_of_one_off(task: Any) -> dict[str, Any]:
    """Return what the body of a one-off says: its run has no name."""
    return _facts(task) | {"job": "one-off"}


def _facts(task: Any) -> dict[str, Any]:
    """Return what a body says of itself; a plain worker knows no more than its message."""
    request, run = task.request, current_run()
    comes_again = {"redelivered": bool((request.delivery_info or {}).get("redelivered"))}
    if IS_PLAIN:
        return _facts_of(vars(request), leased=False) | {"retries": request.retries} | comes_again
    assert run is not None, "a worker ran a message of ours without its lease"
    return {
        "job": run.job_name,
        "slot": run.scheduled_for.isoformat(),
        "run": request.id,
        "attempt": run.attempt,
        "fence": run.fence,
        "retries": request.retries,
        "process": os.getpgrp(),
        "child": os.getpid(),
        "checked": request.chaos_checked,
        **comes_again,
    }


def _facts_of(headers: Mapping[str, Any], leased: bool) -> dict[str, Any]:
    """Return what stands in the headers of a message."""
    return {
        "job": headers["periodic_task_name"],
        "slot": "",
        "run": headers["id"],
        "attempt": 0,
        "fence": headers["sqlbeat"]["fence"],
        "retries": 0,
        "process": os.getpgrp(),
        "child": os.getpid(),
        "leased": leased,
    }


def _sayer(began: float, **facts: Any) -> Callable[[str], None]:
    """Begin a body; what is returned says what becomes of it."""
    name = uuid.uuid4().hex

    def say(what: str, **more: Any) -> None:
        write(WITNESS, {"body": name, "what": what, "at": time.monotonic()} | more)

    say("begins", **facts, at=began)
    return say


def _body(task: Any, seconds: float, fails: bool = False, facts: Callable[[Any], dict[str, Any]] = _facts) -> None:
    began = time.monotonic()  # first of all: what comes next is part of the body
    say = _sayer(began, **facts(task))
    end = time.monotonic() + seconds
    try:
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, STEP))
            say("lives")
        if fails:
            raise ArithmeticError("as it was told to")
    except ArithmeticError:
        say("fails")
        raise
    except BaseException:
        say("is stopped")
        raise
    say("ends")


@task("chaos.works", bind=True)
def works(self: Any, seconds: float) -> None:
    """Take so long."""
    _body(self, seconds)


@task("chaos.works_late", bind=True, acks_late=True, reject_on_worker_lost=True)
def works_late(self: Any, seconds: float) -> None:
    """Work, and have the message acknowledged at the end."""
    _body(self, seconds)


@task("chaos.fails", bind=True)
def fails(self: Any, seconds: float) -> None:
    """Never succeed."""
    _body(self, seconds, fails=True)


@task("chaos.flaky", bind=True)
def flaky(self: Any, seconds: float) -> None:
    """Fail now and then."""
    _body(self, seconds, fails=random.random() < 0.3)


@task("chaos.one_off", bind=True)
def one_off(self: Any, seconds: float) -> None:
    """Fail now and then; of no job."""
    _body(self, seconds, fails=random.random() < 0.2, facts=_facts_of_one_off)


@task("chaos.one_off_late", bind=True, acks_late=True, reject_on_worker_lost=True)
def one_off_late(self: Any, seconds: float) -> None:
    """Work, and have the message acknowledged at the end; of no job."""
    _body(self, seconds, facts=_facts_of_one_off)


@task("chaos.retries", bind=True, max_retries=2)
def retries(self: Any, seconds: float) -> None:
    """Ask Celery itself for another try, once."""
    if self.request.retries < 1:
        _body(self, seconds)
        raise self.retry(countdown=0.5)
    _body(self, seconds)


@task("chaos.tells", bind=True, ignore_result=False)
def tells(self: Any, seconds: float) -> str:
    """Return something that is to be stored."""
    _body(self, seconds)
    return "as it was told to"


@task("chaos.batch", base=Batches, flush_every=5, flush_interval=2)
def batch(requests: Any) -> None:
    """Take messages together."""
    for one in requests:
        _sayer(time.monotonic(), **_facts_of(one.request_dict, leased=True))("ends")


class AtOnce(Task[Any, Any]):
    """Runs a message where it is received, and acknowledges it then."""

    abstract = True

    def start_strategy(self, app: Any, consumer: Any, **options: Any) -> Any:
        """Celery asks for the strategy by this name."""

        def receive(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **more: Any) -> None:
            say = _sayer(time.monotonic(), **_facts_of(message.headers, leased=True))
            time.sleep(STEP / 2)
            say("ends")
            message.ack()

        return receive


@task("chaos.at_once", base=AtOnce)
def at_once(seconds: float) -> None:
    """Never called: its strategy does the work."""
