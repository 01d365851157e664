"""When leases are extended and tasks stopped, by the settings and by the length of the lease."""

from pathlib import Path

import pytest

from celery_sqlbeat.config.settings import Settings, read_settings
from celery_sqlbeat.worker.lease.batching import Timing


def test_the_timing_is_that_of_the_settings() -> None:
    timing = Timing.of(Settings(heartbeat_interval=7.0, heartbeat_failures=2, lock_timeout=60.0))
    assert (timing.heartbeat_interval, timing.heartbeat_failures, timing.lease_seconds) == (7.0, 2, 60.0)


@pytest.mark.parametrize(
    ("lease", "interval", "stop_after"), [(120, 30, 110), (3600, 30, 120), (60, 15, 54), (1, 0.25, 0.9)]
)
def test_heartbeats_are_in_proportion_to_the_lease(lease: float, interval: float, stop_after: float) -> None:
    assert Timing().interval(lease) == interval
    assert Timing().stop_after(lease) == pytest.approx(stop_after)


def test_the_page_of_guarantees_says_how_long_a_lease_can_do_without_a_heartbeat() -> None:
    timing = Timing.of(read_settings({}, {}))
    bound = timing.stop_after(timing.lease_seconds)
    page = (Path(__file__).parents[4] / "docs" / "guarantees.md").read_text()
    assert f"With the defaults it is {bound:g} s" in page
    assert bound - 1.5 * timing.heartbeat_interval >= 60, "an outage of a minute interrupts no task"
