"""What the kinds of Celery's pools are asked for."""

from types import SimpleNamespace
from typing import Any, cast

import gevent
from celery.concurrency.base import BasePool
from celery.concurrency.gevent import TaskPool

from celery_sqlbeat.celery_bridge.event_loop import PlainLoop
from celery_sqlbeat.worker.capacity import pool_for


class OldPool(TaskPool):
    """As Celery has it before 5.5: it neither knows the current green thread nor ends one."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.__dict__.pop("getcurrent", None)

    terminate_job = BasePool.terminate_job


def window_of(pool: Any) -> Any:
    worker = SimpleNamespace(pool=pool, use_eventloop=False)
    posted: list[Any] = []
    slots: Any = pool_for(worker, cast(Any, None), lambda req: None, PlainLoop(posted.append)).capacity
    return gevent.spawn(slots._make_guard, SimpleNamespace(body_guard=None)).get()


def test_celery_itself_ends_the_tasks_of_a_gevent_pool_that_can() -> None:
    assert window_of(TaskPool(1)).is_killable is hasattr(TaskPool(1), "getcurrent")


def test_a_gevent_pool_of_celery_before_5_5_runs_bodies_in_windows_that_only_we_can_end() -> None:
    assert not window_of(OldPool(1)).is_killable
