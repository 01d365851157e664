"""Whatever the lease and the settings, a task is stopped before its lease ends."""

from hypothesis import given
from hypothesis import strategies as some

from celery_sqlbeat.config.settings import stop_timeout
from celery_sqlbeat.worker.lease.batching import Timing


@given(some.floats(1, 1e6), some.floats(0.05, 1e4), some.integers(1, 100))
def test_a_task_is_always_stopped_before_its_lease_ends(lease: float, interval: float, failures: int) -> None:
    timing = Timing(interval, failures)
    assert timing.interval(lease) <= lease / 2
    assert timing.interval(lease) < timing.stop_after(lease) + 1e-9 * lease
    assert timing.stop_after(lease) <= lease - stop_timeout(lease)
