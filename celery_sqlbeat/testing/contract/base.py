"""The fixtures of the contract: those that a store's own test class gives, and the world."""

from collections.abc import Iterator

import pytest

from celery_sqlbeat.testing.clock import SetClock
from celery_sqlbeat.testing.namespace import OVERLAP, MakeStore
from celery_sqlbeat.testing.world import World

JOBS = [pytest.param({}, id="exclusive"), pytest.param({"policies": OVERLAP}, id="overlapping")]
IDS = ["run_id", "claim_id", "fence"]


class Contract:
    """A part of the contract; it needs the fixtures `make_store` and, if it can, `set_clock`."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """Return what makes a store of a namespace, with connections of its own."""
        raise NotImplementedError("give a fixture make_store: it returns a function, from a namespace to a store")

    @pytest.fixture
    def set_clock(self) -> SetClock | None:
        """Return what sets the clock of all stores; None where nobody can set it."""
        return None

    @pytest.fixture
    def world(self, make_store: MakeStore, set_clock: SetClock | None) -> Iterator[World]:
        """Yield a namespace of the test's own, at noon."""
        world = World(make_store, set_clock)
        yield world
        world.close()
