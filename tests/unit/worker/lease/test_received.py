"""Which messages wait in a worker, when their deadlines are moved on, and which ones are copies."""

from types import SimpleNamespace
from typing import Any

from celery_sqlbeat.celery_bridge.message_header import Header
from celery_sqlbeat.model import Unbegun
from celery_sqlbeat.worker.lease.batching import Timing
from celery_sqlbeat.worker.lease.heartbeats import FIRST_SECONDS, WaitingRuns

LEASE = 120.0


class Rig:
    """A register and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.woken = 0
        self.received = WaitingRuns(Timing(float("inf"), 3, LEASE), lambda: self.now)
        self.received.check_soon = self._wake_up

    def _wake_up(self) -> None:
        self.woken += 1

    def came(self, run: str = "a", retries: int = 0, fence: int = 1, lease: float | None = None) -> Any:
        """Return a message; None where it is a copy."""
        message = SimpleNamespace(acknowledged=False)
        return message if self.received.came(header(run, retries, fence, lease), message) else None

    def due(self, seconds: float) -> list[str]:
        """Those due after a while."""
        self.now += seconds
        return [one.run_id for one in self.received.due()]


def header(run: str = "a", retries: int = 0, fence: int = 1, lease: float | None = None) -> Header:
    return Header("store", "default", run, "claim", fence, retries, lease)


def test_a_copy_is_told_from_another_claim_and_from_celerys_own_retry() -> None:
    rig = Rig()
    assert rig.came()
    assert rig.came() is None
    assert rig.came(fence=2) and rig.came(retries=1) and rig.came("b")


def test_what_has_gone_back_to_the_broker_may_come_again() -> None:
    rig = Rig()
    rig.came().acknowledged = True
    assert rig.came()
    rig.received.leave()
    assert rig.came(), "the broker sends it again on the next connection"


def test_no_copy_of_what_has_begun_here_may_come_not_even_on_another_connection() -> None:
    rig = Rig()
    rig.came()
    rig.received.begun(header())
    rig.received.leave()
    assert rig.came() is None
    assert rig.came(retries=1)


def test_only_what_waits_for_a_while_has_its_deadline_moved_on_and_again_by_its_own_lease() -> None:
    rig = Rig()
    for run in ("a", "b", "c"):
        rig.came(run)
    rig.came("short", lease=8.0)
    assert rig.woken == 1, "others are looked at together with the first"
    rig.received.begun(header("b"))
    rig.came("d").acknowledged = True
    assert rig.due(FIRST_SECONDS - 0.1) == []
    assert rig.due(0.2) == ["a", "c", "short"]
    rig.received.moved(rig.received.due(), {"a", "c", "short"})
    assert rig.due(2.0) == ["short"]
    assert rig.received.seconds_left() == 0.0
    assert rig.due(28.0) == ["a", "c", "short"]


def test_what_has_no_deadline_is_asked_for_a_few_times_and_no_more() -> None:
    rig = Rig()
    rig.came()
    pending = 0
    while rig.due(LEASE):
        pending += 1
        rig.received.moved(rig.received.due(), set())
    assert pending == 3
    assert rig.came() is None, "it waits here all the same"


def test_a_heartbeat_knows_when_the_next_one_is_due() -> None:
    rig = Rig()
    assert rig.received.seconds_left() == float("inf")
    rig.came()
    assert rig.received.seconds_left() == FIRST_SECONDS
    assert rig.received.seconds_left(5.0) == 5.0
    assert rig.due(1.0) == ["a"]
    assert rig.received.due() == [Unbegun("a", "claim", 1, 0)]
