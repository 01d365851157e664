"""Runs that make room for the next slot: cancelled once, told to the workers.

Put off while nobody has begun them.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from celery_sqlbeat.beat.reclaim import Replacer
from celery_sqlbeat.model import ReplaceableRun
from celery_sqlbeat.store.records import Guard, KeptRun, Recorded, Release

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)


def run(name: str) -> ReplaceableRun:
    nothing: Any = None
    columns = [nothing] * (len(ReplaceableRun._fields) - 2)
    return ReplaceableRun(name, name, *columns)._replace(run_id=f"run-{name}", now=NOON)


class House:
    """The store and the planner in one."""

    def __init__(self, **makes_room: bool) -> None:
        self.rooms = makes_room
        self.lost: set[str] = set()
        self.postponed: list[tuple[str, datetime | None]] = []
        self.recalled: list[str] = []
        me: Any = self
        self.replacing = Replacer(me, me, "app", self.recalled.extend)

    def replaced(self) -> int:
        return self.replacing.replace([run(name) for name in self.rooms])

    def makes_room(self, one: ReplaceableRun) -> tuple[bool, datetime | None]:
        return self.rooms[one.job_name], NOON + timedelta(seconds=2)

    def finish(self, releases: Sequence[Release], guard: Guard) -> Recorded:
        assert guard is Guard.REPLACEABLE
        return Recorded({end.run_id for end in releases} - self.lost, set())

    def postpone(self, kept: Sequence[KeptRun]) -> set[str]:
        self.postponed += [(one.job_name, at) for one, at in kept]
        return set()


def test_what_makes_room_is_cancelled_and_its_workers_are_told() -> None:
    house = House(begun=True, queued=False)
    assert house.replaced() == 2
    assert house.recalled == ["run-begun"]
    assert house.postponed == [("queued", NOON + timedelta(seconds=2))]


def test_nobody_is_told_of_a_run_that_another_beat_has_cancelled() -> None:
    house = House(begun=True)
    house.lost = {"run-begun"}
    assert house.replaced() == 0
    assert house.recalled == []
