"""A worker without the extension that answers nobody may be running a message: no copy of it is sent."""

import pytest

from celery_sqlbeat.lifecycle import CLAIMED
from tests.process.beats import wait_for
from tests.process.conftest import MakeWorkers
from tests.process.workers import LEASE, PATIENCE, Lane

pytestmark = pytest.mark.slow

PLAIN = """
if os.environ.get("SHOP_PLAIN"):  # this worker has no extension
    from celery import signals

    signals.celeryd_init.receivers.clear()
    app.conf.worker_enable_remote_control = {remote_control}
"""
LANES = [Lane("solo", "redis", "postgresql", "early"), Lane("threads", "rabbitmq", "sqlite", "early")]


@pytest.mark.parametrize(
    ("lane", "remote_control"),
    [(LANES[0], False), (LANES[1], False), (LANES[0], True), (LANES[1]._replace(pool="solo"), True)],
)
def test_what_a_silent_worker_has_taken_is_not_published_again(
    make_workers: MakeWorkers, lane: Lane, remote_control: bool
) -> None:
    """In a roll-out: the plain worker has the message, and the one with the extension makes its queue a leased one."""
    shop = make_workers(lane)
    shop.write_app(lane, PLAIN.format(remote_control=remote_control))
    plain = shop.work(lane.pool, concurrency=1, SHOP_PLAIN="1").ready()
    job = shop.order("work.doze", 3 * LEASE)
    shop.dispatch()
    wait_for(lambda: "start" in {line.what for line in shop.lines()}, PATIENCE, shop.logs)
    shop.work("threads").ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    beat = shop.start()
    wait_for(lambda: shop.job(job).republishes or shop.states(job) != [CLAIMED], PATIENCE, shop.logs)
    wait_for(lambda: "end" in {line.what for line in shop.lines()}, PATIENCE, shop.logs)
    assert len(shop.starts()) == 1, shop.logs()
    assert "are published again" not in beat.log
    beat.stop()
    plain.stop()
    (shop.folder / "witness.log").unlink()  # or each start would need its lease


@pytest.mark.parametrize("lane", LANES, ids="-".join)
@pytest.mark.parametrize("republish", ["auto", "never"])
def test_what_is_lost_is_published_again_where_everybody_keeps_leases_unless_forbidden(
    make_workers: MakeWorkers, lane: Lane, republish: str
) -> None:
    shop = make_workers(lane)
    shop.write_app(lane, sqlbeat_republish=republish)
    worker = shop.work("threads").ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    job = shop.order("work.note")
    (claim,) = shop.claim().values()
    shop.store.for_beat("beat of the test").mark_published([(claim, LEASE)])()  # and the broker has lost it
    beat = shop.start()
    if republish == "never":
        beat.says('sqlbeat_republish is "never"')
        wait_for(lambda: shop.job(job).republishes, PATIENCE, shop.logs)
        assert not shop.starts(job)
    else:
        shop.wait_for_start(job)
        shop.wait_for_states(job, "success")
        beat.says("are published again")
    worker.stop()
