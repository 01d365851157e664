"""A task with effects in a database of the shop, which stands still where it is told to."""

import itertools
import sqlite3
import time
from collections.abc import Callable, Generator
from typing import Any

import psycopg

from celery_sqlbeat import current_run
from celery_sqlbeat.store.sql.session import Row
from tests.process.worker_tasks import task, tell, witnessed


class Stepped(psycopg.Connection[Row]):
    """A connection that says before each exchange with the server that it comes."""

    step: Callable[[], None] = staticmethod(lambda: None)

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        self.step()
        return super().wait(gen, *args, **kwargs)


def connect(where: str, step: Callable[[], None]) -> Any:
    if where.startswith("postgresql"):
        connection = Stepped.connect(where)
        connection.step = step
        return connection
    file = sqlite3.connect(where, timeout=30)
    file.set_trace_callback(lambda _: step())
    return file


@task("once")
def once(self: Any, where: str, stop_at: int) -> None:
    """Do an effect, and stand still in the first attempt before so many steps were made."""
    run, steps = current_run(), itertools.count()
    assert run is not None

    def step() -> None:
        if run.attempt == 1 and next(steps) == stop_at:
            tell(self, "stands")
            time.sleep(600)

    with witnessed(self):
        connection = connect(where, step)
        with run.transaction(connection):
            connection.execute(f"INSERT INTO Effects VALUES ('{run.job_name}', {run.attempt})")
        step()
        tell(self, "steps", steps=next(steps) - 1)
