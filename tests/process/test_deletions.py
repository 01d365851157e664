"""A job that is deleted while it runs is gone once its run has ended, by whichever beat is there.

Real processes.
"""

import pytest

from celery_sqlbeat.model import DeleteJob
from celery_sqlbeat.model.lifecycle import SUCCESS
from celery_sqlbeat.store.records import JobQuery
from tests.process.conftest import MakeWorkers
from tests.process.workers import PATIENCE, Lane, WorkerShop, lane_name, lanes
from tests.support.beats import wait_for
from tests.support.views import AdminView

pytestmark = pytest.mark.slow

LANES = [Lane("prefork", "redis", "postgresql", "late"), Lane("threads", "rabbitmq", "sqlite", "early")]
SELDOM = 600  # seconds between two polls: none of them comes while a test lasts


@pytest.fixture(params=lanes(among=LANES), ids=lane_name)
def shop(make_workers: MakeWorkers, request: pytest.FixtureRequest) -> WorkerShop:
    """Return a shop with a worker."""
    shop = make_workers(request.param)
    shop.write_app(request.param, sqlbeat_poll_interval=SELDOM)
    shop.work(request.param.pool).ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    return shop


def is_gone(shop: WorkerShop, name: str) -> bool:
    return name not in AdminView(shop.store).jobs(JobQuery(names=[name]))


@pytest.mark.parametrize("overlap", ["queue", "allow"])
def test_its_row_goes_with_the_end_of_its_run_and_not_with_the_next_poll(shop: WorkerShop, overlap: str) -> None:
    beat = shop.start()
    name = shop.order("work.sleep", 3, policies={"overlap": overlap})
    shop.wait_for_start(name)
    assert AdminView(shop.store).write_jobs([DeleteJob(name)]).done
    assert not is_gone(shop, name), "its run goes on"
    wait_for(lambda: is_gone(shop, name), PATIENCE, shop.logs)
    (run,) = shop.attempts(name)
    assert run.state == SUCCESS, shop.logs()
    assert shop.order("work.note", name=name) == name  # under the same name, with the fences that go on
    wait_for(lambda: shop.states(name) == [SUCCESS, SUCCESS], PATIENCE, shop.logs)
    assert shop.attempts(name)[1].fence > run.fence
    beat.stop()


def test_its_row_goes_with_the_next_beat_where_none_was_there(shop: WorkerShop) -> None:
    name = shop.order("work.sleep", 1)
    shop.dispatch()
    shop.wait_for_start(name)
    assert AdminView(shop.store).write_jobs([DeleteJob(name)]).done
    shop.wait_for_outcome(name)
    assert not is_gone(shop, name), "nobody was there to delete it"
    beat = shop.start()
    wait_for(lambda: is_gone(shop, name), PATIENCE, shop.logs)
    beat.stop()
