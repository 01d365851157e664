"""Which ended leases a beat takes, with stand-ins for the database and the broker."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_sqlbeat.beat.deadlines import ReclaimGuard
from celery_sqlbeat.beat.reclaim import Reclaimer, claim_of
from celery_sqlbeat.config.policy import Policies, RetryRule, policies_from_setting
from celery_sqlbeat.model import HeldLease
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.lifecycle import CLAIMED, RUNNING
from celery_sqlbeat.store.records import Expired, Guard, Recorded, Release

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
RULES = Rules(Policies(), "UTC", 120.0, 3)
PATIENCE, DISPATCH = 45.0, 15.0


class House:
    """The store, publisher, membership and code in one, with a settable server clock."""

    is_watched = False

    def __init__(self) -> None:
        self.time = 0.0
        self.jumped = 0.0
        self.state = RUNNING
        self.keys: list[str] = []
        self.taken: list[str] = []
        self.reclaim_guard = ReclaimGuard(PATIENCE, DISPATCH, 120.0, self.clock)
        me: Any = self
        self.reclaimer = Reclaimer(me, me, me, me, RULES, self.reclaim_guard, 5, 15.0, 500, self.clock)

    def clock(self) -> float:
        return self.time

    def server_now(self) -> datetime:
        return NOON + timedelta(seconds=self.time + self.jumped)

    def expired(self, batch_size: int, owner: str) -> Expired:
        names = HeldLease._fields
        facts: dict[str, Any] = dict.fromkeys(names)
        facts |= {"run_id": "run", "state": self.state, "started": self.state == RUNNING, "attempt": 1, "fence": 1}
        facts |= {"lost_leases": 0, "lease_seconds": 120.0}
        return Expired([HeldLease(**{**facts, "now": self.server_now()})], [])

    def finish(self, releases: list[Release], guard: Guard) -> Recorded:
        assert guard is Guard.EXPIRED
        found = {end.run_id for end in releases}
        self.taken += found
        return Recorded(found, set())

    def is_own(self, job_name: str, owner: str | None) -> bool:
        return False

    def is_sent_by_others(self, job_name: str, owner: str | None) -> bool:
        return False

    def postpone(self, waiting: list[Any], node: str) -> set[str]:
        return set()


def test_a_lease_that_ended_is_taken_from_a_worker_that_had_the_time_to_extend_it() -> None:
    house = House()
    house.reclaim_guard.saw(house.server_now(), house.time)
    house.time = PATIENCE + 1
    house.reclaim_guard.saw(house.server_now(), house.time)
    house.reclaimer.reclaim()
    assert house.taken == ["run"]


def test_a_clock_that_is_set_between_the_look_and_the_reading_of_leases_takes_none_from_a_living_worker() -> None:
    house = House()
    house.reclaim_guard.saw(house.server_now(), house.time)
    house.time = PATIENCE + 1
    house.reclaim_guard.saw(house.server_now(), house.time)
    house.jumped = 300.0
    house.reclaimer.reclaim()
    assert house.taken == []


@pytest.mark.parametrize("jump", [300.0, -300.0])
def test_a_clock_that_is_set_takes_no_claim_from_a_beat_that_may_still_publish_it(jump: float) -> None:
    house = House()
    house.state = CLAIMED
    house.reclaim_guard.saw(house.server_now(), house.time)
    house.time = DISPATCH + 1
    house.reclaim_guard.saw(house.server_now(), house.time)
    house.jumped = jump
    house.reclaimer.reclaim()
    assert house.taken == []
    house.time += DISPATCH - 1
    house.reclaimer.reclaim()
    assert house.taken == []
    house.time += 2
    house.reclaimer.reclaim()
    assert house.taken == ["run"]


def test_a_copy_of_a_message_says_of_retries_what_the_first_one_said() -> None:
    policies = policies_from_setting({"nightly": {"retry_strategy": "linear", "dead_on": ["KeyError"]}})
    facts: dict[str, Any] = dict.fromkeys(HeldLease._fields)
    lease = HeldLease(**{**facts, "job_name": "nightly", "task_name": "t", "policies": '{"dead_on": ["OSError"]}'})
    rules = RULES._replace(policies=policies)
    assert claim_of(lease, rules).retry == RetryRule("linear", None, ("OSError",))
    assert claim_of(lease._replace(job_name="x", policies=None), rules).retry is None


def test_a_new_beat_takes_a_claim_once_its_beat_cannot_publish_it_any_more() -> None:
    house = House()
    house.state = CLAIMED
    house.reclaim_guard.saw(house.server_now(), house.time)
    house.time = DISPATCH - 1
    house.reclaimer.reclaim()
    assert house.taken == []
    house.time = DISPATCH + 1
    house.reclaimer.reclaim()
    assert house.taken == ["run"]


def test_a_beat_whose_first_look_comes_late_counts_from_that_look() -> None:
    """The server's clock may have been set between the beat's start and its first look."""
    house = House()
    house.state = CLAIMED
    house.time = DISPATCH + 1
    house.reclaimer.reclaim()
    assert house.taken == []
    house.time = 2 * DISPATCH + 2
    house.reclaimer.reclaim()
    assert house.taken == ["run"]
