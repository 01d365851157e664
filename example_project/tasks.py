"""The tasks: plain Celery."""

import time
from typing import Any

from celery import Task, shared_task
from celery.utils.log import get_task_logger

log = get_task_logger(__name__)
STEPS = 10  # of a report, each with a line of progress


def say_begun(task: Task) -> None:
    """Log which worker runs this."""
    log.info("begun on %s", task.request.hostname)


@shared_task(bind=True)
def ping_shops(self: Task) -> str:
    """A short task."""
    say_begun(self)
    return "all answer"


@shared_task(bind=True)
def count_orders(self: Task) -> int:
    """Another one."""
    say_begun(self)
    time.sleep(0.2)
    return 42


@shared_task(bind=True)
def build_report(self: Task, seconds: float = 60) -> str:
    """A long task; it takes so many seconds and says how far it is."""
    say_begun(self)
    for step in range(1, STEPS + 1):
        time.sleep(seconds / STEPS)
        log.info("%s: %d %% done", self.request.hostname, 100 * step // STEPS)
    log.info("%s: complete", self.request.hostname)
    return "report.pdf"


@shared_task(bind=True)
def fetch_rates(self: Task) -> Any:
    """A task whose other side is never there; its slots end in the dead letters."""
    say_begun(self)
    raise ConnectionError("the exchange rates cannot be fetched: 503 Service Unavailable")


@shared_task(bind=True)
def close_books(self: Task) -> str:
    """What happens once a day, or in the demonstration once a minute."""
    say_begun(self)
    return "closed"
