"""What the kinds of Celery's pools are asked for."""

from types import SimpleNamespace
from typing import Any, cast

import gevent
from celery.concurrency.gevent import TaskPool

from celery_sqlbeat.worker.loops import PlainLoop
from celery_sqlbeat.worker.pools import pool_for


def test_a_gevent_pool_of_celery_before_5_5_runs_bodies_in_windows() -> None:
    """It has no way of its own to ask for the current green thread."""
    pool = TaskPool(1)
    vars(pool).pop("getcurrent", None)
    worker = SimpleNamespace(pool=pool, use_eventloop=False)
    posted: list[Any] = []
    slots: Any = pool_for(worker, cast(Any, None), lambda req: None, PlainLoop(posted.append)).slots
    window = gevent.spawn(slots._make_window, SimpleNamespace(window=None)).get()
    assert window.is_killable and not window.is_open
