"""A batch waits for more only where more comes, and not for long."""

import pytest

from celery_sqlbeat.lifecycle import after_success
from celery_sqlbeat.worker.gathering import Gathering
from celery_sqlbeat.worker.timing import Timing
from tests.unit.worker.rig import Rig


def crowd(gathering: Gathering, per_second: float, now: float = 100.0) -> float:
    """Let rows come at this rate for a while, each batch sent at once; returns the time of the last."""
    for _ in range(200):
        now += 1 / per_second
        gathering.came(1, now)
        gathering.sent()
    return now


def test_the_first_rows_after_a_while_go_at_once() -> None:
    gathering = Gathering(enough=16)
    gathering.came(1, 100.0)
    assert gathering.seconds_left(100.0, 0.010) == 0.0


def test_in_a_crowd_a_batch_waits_for_more_and_no_longer_than_it_may() -> None:
    gathering = Gathering(enough=16)
    now = crowd(gathering, 1000) + 0.001
    gathering.came(1, now)
    assert round(gathering.seconds_left(now, 0.010), 6) == 0.010
    assert round(gathering.seconds_left(now + 0.002, 0.010), 6) == 0.008
    assert gathering.seconds_left(now + 0.010, 0.010) == 0.0


def test_where_too_few_would_come_nothing_waits() -> None:
    gathering = Gathering(enough=16)
    now = crowd(gathering, 100) + 0.010
    gathering.came(1, now)
    assert gathering.seconds_left(now, 0.010) == 0.0
    assert gathering.seconds_left(now, 0.100) > 0.0


def test_when_the_crowd_is_gone_its_last_rows_do_not_wait_to_the_end() -> None:
    gathering = Gathering(enough=16)
    now = crowd(gathering, 1000) + 0.001
    gathering.came(1, now)
    assert gathering.seconds_left(now + 0.005, 0.010) == 0.0


def test_enough_rows_go_at_once() -> None:
    gathering = Gathering(enough=16)
    now = crowd(gathering, 1000)
    gathering.came(16, now)
    assert gathering.seconds_left(now, 0.010) == 0.0


def busy(rig: Rig, seconds: float, outcomes: bool = False) -> None:
    """A worker that begins, and where wanted ends, a thousand runs a second, each asked ahead."""
    claims = rig.claims(round(seconds * 1000))
    for claim in claims:
        request = rig.ask(claim, ahead=True)
        rig.run_for(0.001)
        if outcomes and rig.answer(request):
            rig.take(rig.holding(request))
            rig.keeper.finish(rig.holding(request), after_success())


def test_at_a_thousand_runs_a_second_ten_and_more_share_a_statement() -> None:
    rig = Rig()
    busy(rig, 0.2)
    rig.line.sent.clear()
    busy(rig, 0.5)
    assert 30 <= rig.line.sent["start"] <= 50


def test_a_slot_in_hand_cuts_the_gathering_short() -> None:
    rig = Rig()
    busy(rig, 0.2)
    request = rig.ask(rig.claim())
    rig.run_for(Timing().gather_slots + 0.0001)
    assert rig.answer(request) is not None


def test_a_slot_that_comes_for_what_was_asked_ahead_cuts_it_short_too() -> None:
    rig = Rig()
    busy(rig, 0.2)
    rig.run_for(0.1)
    for _ in range(5):
        rig.later(0.001)
        rig.ask(rig.claim(), ahead=True)
        rig.keeper.serve()
    rig.keeper.hurry(keeps_slot=True)
    assert rig.woken["serve"] > 0
    rig.run_for(Timing().gather_slots)
    assert rig.is_idle()


@pytest.mark.parametrize("keeps_slot", [True, False])
def test_what_keeps_no_slot_gathers_a_little_longer(keeps_slot: bool) -> None:
    rig = Rig()
    busy(rig, 0.2)
    rig.line.sent.clear()
    while not rig.line.sent["start"]:  # from here on a new batch gathers
        busy(rig, 0.001)
    first, began = rig.ask(rig.claim(), ahead=True), rig.monotonic
    rig.keeper.hurry(keeps_slot)
    while rig.answer(first) is None:
        rig.run_for(0.001)
        rig.ask(rig.claim(), ahead=True)
    longest = Timing().gather_slots if keeps_slot else Timing().gather_passing
    assert longest - 0.002 < rig.monotonic - began < longest + 0.002


def test_closing_gathers_no_more() -> None:
    rig = Rig()
    busy(rig, 0.2, outcomes=True)
    rig.keeper.close()
    rig.settle()
    assert rig.is_idle()


def test_who_comes_while_the_step_gathers_does_not_wake_it() -> None:
    rig = Rig()
    busy(rig, 0.2)
    for _ in range(40):
        request = rig.ask(rig.claim(), ahead=True)
        if rig.keeper.serve() > Timing().gather_slots and rig.answer(request) is None:
            break
        rig.later(0.001)
    assert rig.answer(request) is None
    woken = rig.woken["serve"]
    rig.ask(rig.claim(), ahead=True)
    assert rig.woken["serve"] == woken
    rig.ask(rig.claim())
    assert rig.woken["serve"] == woken + 1, "who has a slot in hand does"
