"""The contract that judges stores: it hides none of its rules, and its clock waits or skips."""

from collections import Counter
from datetime import datetime, timedelta, timezone

import pytest

from celery_sqlbeat.testing import StoreContract
from celery_sqlbeat.testing.clock import NOON, Clock


def test_no_rule_hides_another_one_of_its_name() -> None:
    names = Counter(name for part in StoreContract.__mro__ for name in vars(part) if name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) > 200


def test_a_clock_that_can_be_set_runs_on_at_once() -> None:
    told: list[datetime] = []
    clock = Clock(lambda: told[-1], told.append)
    assert clock.later(3600) == NOON + timedelta(hours=1) == told[-1] == clock.now
    assert clock.near(NOON) == NOON and clock.near(NOON) != NOON + timedelta(microseconds=1)


def test_without_one_a_test_waits_for_a_short_time_and_is_skipped_with_the_reason_for_a_long_one() -> None:
    clock = Clock(lambda: datetime.now(timezone.utc), None)
    assert clock.later(0.05) - clock.began_at >= timedelta(seconds=0.05)
    assert clock.near(clock.began_at) == clock.now
    with pytest.raises(pytest.skip.Exception, match="settable clock: it lets 60 s pass"):
        clock.later(60)
    with pytest.raises(pytest.skip.Exception, match="settable clock: it sets a certain instant"):
        clock.at(NOON)
