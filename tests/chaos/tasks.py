"""The tasks of the storm: each writes down when its body begins, that it lives, and how it ended."""

import os
import random
import time
import uuid
from collections.abc import Callable
from typing import Any

from celery import shared_task

from celery_sqlbeat import current_run
from tests.chaos.witnesses import STEP, write

WITNESS = os.environ.get("CHAOS_WITNESS", "witness.log")


def task(name: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A task of every app, bound to itself."""
    made: Callable[[Callable[..., Any]], Any] = shared_task(name=name, **options)
    return made


def _body(task: Any, seconds: float, fails: bool = False) -> None:
    run = current_run()
    assert run is not None, "a worker ran a message of ours without its lease"
    name = uuid.uuid4().hex

    def say(what: str, **facts: Any) -> None:
        write(WITNESS, {"body": name, "what": what, "at": time.monotonic(), **facts})

    say(
        "begins",
        job=run.job_name,
        slot=run.scheduled_for.isoformat(),
        run=task.request.id,
        attempt=run.attempt,
        fence=run.fence,
        retries=task.request.retries,
        process=os.getpgrp(),
    )
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
    """The same; its message is acknowledged when it has ended."""
    _body(self, seconds)


@task("chaos.fails", bind=True)
def fails(self: Any, seconds: float) -> None:
    """Never succeed."""
    _body(self, seconds, fails=True)


@task("chaos.flaky", bind=True)
def flaky(self: Any, seconds: float) -> None:
    """Fail now and then."""
    _body(self, seconds, fails=random.random() < 0.3)


@task("chaos.retries", bind=True, max_retries=2)
def retries(self: Any, seconds: float) -> None:
    """Ask Celery itself for another try, once."""
    if self.request.retries < 1:
        _body(self, seconds)
        raise self.retry(countdown=0.5)
    _body(self, seconds)
