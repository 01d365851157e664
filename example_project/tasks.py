"""The tasks: plain Celery."""

from __future__ import annotations

import time
from typing import Any

from celery import Task, shared_task
from celery.utils.log import get_task_logger

log = get_task_logger(__name__)
STEPS = 10  # of a report, each with a line of progress


def say_begun(task: Task[..., Any]) -> None:
    """Log which worker runs this."""
    log.info("begun on %s", task.request.hostname)


@shared_task(bind=True)
def ping_shops(self: Task[..., Any]) -> str:
    """Ping the shops, which takes a moment."""
    say_begun(self)
    return "all answer"


@shared_task(bind=True)
def count_orders(self: Task[..., Any]) -> int:
    """Count the orders, which takes a fifth of a second."""
    say_begun(self)
    time.sleep(0.2)
    return 42


@shared_task(bind=True)
def build_report(self: Task[..., Any], seconds: float = 60) -> str:
    """Build the report for so many seconds, and print the progress."""
    say_begun(self)
    for step in range(1, STEPS + 1):
        time.sleep(seconds / STEPS)
        log.info("%s: %d %% done", self.request.hostname, 100 * step // STEPS)
    log.info("%s: complete", self.request.hostname)
    return "report.pdf"


@shared_task(bind=True)
def fetch_rates(self: Task[..., Any]) -> Any:
    """Fetch from a server that never answers, so that the slots become dead letters."""
    say_begun(self)
    raise ConnectionError("the exchange rates cannot be fetched: 503 Service Unavailable")


@shared_task(bind=True)
def close_books(self: Task[..., Any]) -> str:
    """Run once a day, or once a minute in the demonstration."""
    say_begun(self)
    return "closed"
