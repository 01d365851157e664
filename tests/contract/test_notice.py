"""What the other beats are told.

A run that leaves its job due at another instant than its claim had planned.
"""

from datetime import timedelta

from tests.support.world import World


def test_a_run_whose_next_slot_was_moved_by_hand_is_announced(world: World) -> None:
    name = world.add()
    run = world.running()
    world.sql("UPDATE Jobs SET NextRunTime = ? WHERE JobName = ?", world.now + timedelta(seconds=10), name)
    before = world.beat.changes()
    world.finish(run)
    assert world.beat.changes() > before
