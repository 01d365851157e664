"""RabbitMQ itself keeps what has a countdown, with quorum queues.

It is leased by the queue that it comes to then.
"""

import pytest

from celery_sqlbeat.model.lifecycle import DISPATCHED, SUCCESS
from tests.process.conftest import MakeWorkers
from tests.process.workers import PATIENCE, Lane
from tests.support.beats import wait_for

pytestmark = pytest.mark.slow

QUORUM = """
from kombu import Exchange, Queue
app.conf.task_queues = [
    Queue({name!r}, Exchange({exchange!r}, "topic"), routing_key="quorum", queue_arguments={{"x-queue-type": "quorum"}})
]
"""


def test_what_the_broker_delays_is_leased_by_the_queue_that_it_comes_to(make_workers: MakeWorkers) -> None:
    shop = make_workers(Lane("threads", "rabbitmq", "sqlite", "early"))
    queue = QUORUM.format(name=shop.place.queue("default"), exchange=f"{shop.place.prefix}.topic")
    entry = {"task": "work.note", "schedule": 1.0, "options": {"countdown": 2}}
    shop.write_app(None, queue, beat_schedule={"late": entry})
    shop.work("threads").ready()
    beat = shop.start()
    wait_for(lambda: shop.states("late").count(SUCCESS) >= 2, PATIENCE, shop.logs)
    assert DISPATCHED not in shop.states("late"), shop.logs()
    assert not beat.events("worker_unleased")
    assert all(start.fence is not None for start in shop.starts("late"))
