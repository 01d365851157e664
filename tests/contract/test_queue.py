"""Between claim and start.

Publishing, giving back, republishing, dispatching, taking over, and when to wake.
"""

from datetime import datetime, timedelta

from celery_sqlbeat.model import HeldLease
from celery_sqlbeat.model.lifecycle import Republish
from tests.support.world import LEASE, NOON, World, earliest

MINUTE = timedelta(minutes=1)


def ended_one(world: World) -> HeldLease:
    """Return the only lease that has ended."""
    (lease,) = world.beat.ended(10)
    return lease


def test_without_a_worker_that_has_the_extension_the_slot_waits_without_a_new_message(world: World) -> None:
    world.add()
    claim = world.claim_one()
    world.publish(claim)
    world.later(LEASE)
    assert world.decided(ended_one(world), can_republish=False) == Republish(2 * LEASE, False)


def wake(world: World) -> datetime | None:
    return earliest(world.beat.next_deadlines())


def test_beat_wakes_for_the_outbox_where_the_job_is_free(world: World) -> None:
    name = world.add(NextRunTime=NOON + 10 * MINUTE)
    assert world.add_slot(world.job(name)["id"])
    found = world.beat.next_deadlines()
    assert earliest(found) == found.outbox_at == NOON
    world.change(name, Enabled=0)
    assert wake(world) is None
    world.change(name, Enabled=1, LockedBy="maintenance")
    assert world.beat.next_deadlines().outbox_at is None
