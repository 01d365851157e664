"""Each database beside the store in memory: whatever is asked of both, they answer alike.

The store in memory is the model: its conditions are plain Python, and no statement has a part in
them.
"""

from datetime import datetime, timezone

import pytest

from celery_sqlbeat.store.keyvalue.memory import memory_store
from celery_sqlbeat.store.protocol import Store
from tests.contract.conftest import Place
from tests.contract.walk import Walk
from tests.support.world import World

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
STEPS = 200


class Model:
    """The store in memory, and its clock."""

    def __init__(self) -> None:
        self.now = NOON
        self.store: Store = memory_store(f"beside-{id(self)}", clock=lambda: self.now)


@pytest.mark.parametrize("seed", range(4))
def test_a_store_is_as_the_one_in_memory(place: Place, world: World, seed: int) -> None:
    model = Model()

    def set_clock(instant: datetime) -> None:
        model.now = instant
        place.set_clock(instant)

    walk = Walk([world.store, model.store], seed, NOON, set_clock)
    for _ in range(STEPS):
        walk.step()
