"""A worker without the extension that answers nobody may be running a message.

No copy of it is sent.
"""

import signal

import pytest

from celery_sqlbeat.model.lifecycle import CLAIMED
from tests.process.conftest import MakeWorkers
from tests.process.workers import LEASE, PATIENCE, Lane
from tests.support.beats import wait_for
from tests.support.brokers import Wire
from tests.support.views import BeatView

pytestmark = pytest.mark.slow

PLAIN = """
if os.environ.get("SHOP_PLAIN"):  # this worker has no extension
    from celery import signals

    signals.celeryd_init.receivers.clear()
    app.conf.worker_enable_remote_control = {remote_control}
"""
BEHIND = 'app.conf.broker_url = os.environ.get("SHOP_BROKER", app.conf.broker_url)'
LANES = [Lane("solo", "redis", "postgresql", "early"), Lane("threads", "rabbitmq", "sqlite", "early")]


@pytest.mark.parametrize(
    ("lane", "remote_control"),
    [(LANES[0], False), (LANES[1], False), (LANES[0], True), (LANES[1]._replace(pool="solo"), True)],
)
def test_what_a_silent_worker_has_taken_is_not_published_again(
    make_workers: MakeWorkers, lane: Lane, remote_control: bool
) -> None:
    """The plain worker has the message, and the other one makes the queue a leased one."""
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
    assert not beat.events("runs_republished")
    beat.stop()
    plain.stop()
    (shop.folder / "witness.log").unlink()  # or each start would need its lease


def test_who_took_a_copy_since_the_last_look_is_looked_for_again(make_workers: MakeWorkers) -> None:
    """The beat knows a queue without strangers; then a plain worker comes and takes a copy."""
    shop = make_workers(LANES[0])
    shop.write_app(LANES[0], PLAIN.format(remote_control=False))
    leasing = shop.work("threads").ready()
    wait_for(shop.worker_nodes, PATIENCE, shop.logs)
    lost, copied = shop.order("work.note"), shop.order("work.doze", 8 * LEASE)
    claims, other_beat = shop.claim(), BeatView(shop.store, "beat of the test")
    other_beat.mark_published([(claims[lost], LEASE), (claims[copied], 8 * LEASE)])  # the broker loses both
    beat = shop.start()
    shop.wait_for_states(lost, "success")
    beat.signal(signal.SIGSTOP)
    (node,) = shop.worker_nodes()
    wait_for(lambda: shop.worker_nodes()[0].heartbeat_at != node.heartbeat_at, PATIENCE, shop.logs)
    leasing.kill()
    shop.work("solo", concurrency=1, SHOP_PLAIN="1").ready()
    wait_for(lambda: other_beat.ended(10), PATIENCE, shop.logs)
    assert other_beat.postpone_start_deadline([(lease, LEASE) for lease in other_beat.ended(10)])
    shop.publish(claims[copied], mark=False)
    wait_for(lambda: len(shop.starts()) == 2, PATIENCE, shop.logs)
    shop.work("threads").ready()
    wait_for(lambda: len(shop.worker_nodes()) == 2, PATIENCE, shop.logs)
    beat.signal(signal.SIGCONT)
    wait_for(lambda: shop.job(copied).republishes == 2 or shop.states(copied) != [CLAIMED], PATIENCE, shop.logs)
    assert len(shop.starts()) == 2, shop.logs()
    assert len(beat.events("runs_republished")) == 1, shop.logs()
    beat.stop()
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
    BeatView(shop.store, "beat of the test").mark_published([(claim, LEASE)])  # and the broker has lost it
    beat = shop.start()
    if republish == "never":
        beat.says(f'of job {job} is not sent again: sqlbeat_republish is "never"', seconds=PATIENCE)
        wait_for(lambda: shop.job(job).republishes, PATIENCE, shop.logs)
        assert not shop.starts(job)
    else:
        shop.wait_for_start(job)
        shop.wait_for_states(job, "success")
        beat.says("are published again")
    worker.stop()


def test_on_redis_what_is_not_among_the_waiting_messages_is_published_again(make_workers: MakeWorkers) -> None:
    """The only worker is busy, and messages wait for it."""
    shop = make_workers(LANES[0])
    shop.write_app(LANES[0], worker_prefetch_multiplier=1)
    shop.work("threads", concurrency=1).ready()
    shop.order("work.doze", 3 * LEASE)
    shop.dispatch()
    wait_for(lambda: "start" in {line.what for line in shop.lines()}, PATIENCE, shop.logs)
    waiting = [shop.order("work.note") for _ in range(5)]
    shop.dispatch()
    lost = shop.order("work.note")
    BeatView(shop.store, "beat of the test").mark_published([(shop.claim()[lost], LEASE)])
    beat = shop.start()
    beat.says(f"are published again: runs=1 job_names={lost}", seconds=PATIENCE)
    for job in (lost, *waiting):
        shop.wait_for_states(job, "success")
    assert len(beat.events("runs_republished")) == 1, shop.logs()


def test_on_redis_a_worker_behind_a_proxy_is_known_by_the_name_of_its_connection(make_workers: MakeWorkers) -> None:
    """One of two stands still, so that no heartbeat tells of it; its address says nothing."""
    shop = make_workers(LANES[0])
    wire = Wire(shop.place.url)
    shop.write_app(LANES[0], BEHIND)
    frozen = shop.work("threads", SHOP_BROKER=wire.url).ready()
    shop.work("threads", SHOP_BROKER=wire.url).ready()
    wait_for(lambda: len(shop.worker_nodes()) == 2, PATIENCE, shop.logs)
    job = shop.order("work.note")
    (claim,) = shop.claim().values()
    BeatView(shop.store, "beat of the test").mark_published([(claim, LEASE)])  # and the broker has lost it
    frozen.signal(signal.SIGSTOP)
    beat = shop.start()
    beat.says("are published again", seconds=PATIENCE)
    shop.wait_for_start(job)
    shop.wait_for_states(job, "success")
    frozen.signal(signal.SIGCONT)
    wire.close()
