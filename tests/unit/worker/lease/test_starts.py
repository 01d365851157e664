"""Starts: each message is answered once and in time, and what its start did is never forgotten."""

from typing import Any

import pytest

from celery_sqlbeat.config.policy import RetryRule
from celery_sqlbeat.model import StartRequest
from celery_sqlbeat.worker.lease import Phase, StaleMessage, Started, StoreUnavailable
from celery_sqlbeat.worker.lease.batching import Timing
from celery_sqlbeat.worker.lease.starts import StartQuestion
from tests.unit.worker.rig import AT_ONCE, AWAY, BUSY, REFUSED, Rig


def test_a_start_whose_reply_is_lost_after_its_commit_is_no_lost_start() -> None:
    rig = Rig()
    claim = rig.claim()
    request = rig.ask(claim)
    rig.line.lose_reply_to = "start"
    rig.settle()
    assert rig.answer(request) is None and rig.state(claim) == "running"
    rig.run_for(1)
    assert rig.run_lease(request).take()
    assert rig.run_lease(request).run.attempt == 1


def test_the_lease_of_a_start_asked_twice_is_counted_from_the_second_question() -> None:
    """The second answer extended nothing in the past, and the database took the later instant."""
    rig = Rig()
    request = rig.ask(rig.claim())
    rig.line.lose_reply_to = "start"
    rig.settle()
    rig.later(5)
    rig.settle()
    assert rig.run_lease(request).sent_at == pytest.approx(rig.monotonic)


def test_a_run_keeps_what_its_message_says_of_retries() -> None:
    rig = Rig()
    ruled, plain = rig.ask(rig.claim(policies='{"dead_on": ["KeyError"]}')), rig.ask(rig.claim())
    rig.settle()
    assert rig.run_lease(ruled).retry == RetryRule(None, None, ("KeyError",))
    assert rig.run_lease(plain).retry is None


def test_while_the_database_is_away_a_message_waits_a_bounded_time_and_goes_back() -> None:
    rig = Rig()
    claim = rig.claim()
    request = rig.ask(claim)
    rig.line.is_unavailable = True
    rig.run_for(14)
    assert rig.answer(request) is None
    assert rig.line.sent["start"] < 40, "no busy loop"
    rig.run_for(2)
    assert isinstance(rig.answer(request), StoreUnavailable)
    assert rig.state(claim) == "claimed"


def test_a_message_that_waited_through_a_short_outage_begins() -> None:
    rig = Rig()
    request = rig.ask(rig.claim())
    rig.line.is_unavailable = True
    rig.run_for(8)
    rig.line.is_unavailable = False
    rig.run_for(3)
    assert rig.run_lease(request).take()


def test_a_start_that_committed_while_its_message_went_back_is_un_started() -> None:
    """Nobody will ever begin it.

    The message is with the broker again, and there it would be a duplicate.
    """
    rig = Rig()
    claim = rig.claim()
    request = rig.ask(claim)
    rig.line.lose_reply_to = "start"
    rig.settle()
    rig.line.is_unavailable = True
    rig.run_for(20)
    assert isinstance(rig.answer(request), StoreUnavailable) and rig.state(claim) == "running"
    rig.line.is_unavailable = False
    rig.run_for(3)
    assert rig.state(claim) == "scheduled" and rig.holder(claim) is None
    assert rig.is_idle() and rig.lease_manager.held == 0
    assert rig.world.claim_one().run_id == claim.run_id


def test_what_never_became_of_a_start_is_forgotten_when_its_lease_has_ended() -> None:
    rig = Rig()
    request = rig.ask(rig.claim())
    rig.line.is_unavailable = True
    rig.run_for(20)
    assert isinstance(rig.answer(request), StoreUnavailable) and not rig.is_idle()
    rig.run_for(130)
    assert rig.is_idle()
    sent = rig.line.sent["start"]
    rig.run_for(600)
    assert rig.line.sent["start"] == sent


def test_a_withdrawn_message_is_not_asked_about() -> None:
    rig = Rig()
    claim = rig.claim()
    request = rig.ask(claim)
    rig.withdraw(request)
    rig.settle()
    assert rig.answer(request) is None and rig.line.sent["start"] == 0 and rig.is_idle()


def test_a_message_withdrawn_while_its_start_commits_is_un_started() -> None:
    rig = Rig()
    claim = rig.claim()
    request = rig.ask(claim)
    rig.line.during = lambda kind: rig.withdraw(request) if kind == "start" else None
    rig.settle()
    rig.settle()
    assert rig.answer(request) is None
    assert rig.state(claim) == "scheduled" and rig.lease_manager.held == 0


def test_a_message_withdrawn_after_a_lost_reply_is_un_started_when_the_database_is_back() -> None:
    rig = Rig()
    claim = rig.claim()
    request = rig.ask(claim)
    rig.line.lose_reply_to = "start"
    rig.settle()
    rig.withdraw(request)
    rig.run_for(2)
    assert rig.answer(request) is None and rig.state(claim) == "scheduled"


def test_to_withdraw_a_message_that_has_its_answer_changes_nothing() -> None:
    rig = Rig()
    request = rig.ask(rig.claim())
    rig.settle()
    rig.withdraw(request)
    rig.settle()
    assert rig.run_lease(request).take()


def test_two_copies_of_a_message_in_one_batch_begin_once_whichever_came_first() -> None:
    rig = Rig()
    claim = rig.claim()
    requests = [rig.ask(claim) for _ in range(4)]
    rig.settle()
    assert [type(rig.answer(one)) for one in requests] == [Started, StaleMessage, StaleMessage, StaleMessage]


def test_a_forged_copy_does_not_take_the_place_of_the_real_one_in_its_batch() -> None:
    rig = Rig()
    claim = rig.claim()
    forged = rig.ask(claim._replace(claim_id=rig.world.ids.random_id()), celery_retries=99)
    real = rig.ask(claim)
    rig.settle()
    assert isinstance(rig.answer(forged), StaleMessage)
    assert rig.run_lease(real).take()


HOSTILE: list[dict[str, Any]] = [
    {"fence": "1"},
    {"fence": None},
    {"fence": True},
    {"fence": 1.0},
    {"fence": -1},
    {"fence": 2**63},
    {"fence": 10**400},
    {"run_id": "x'; DROP TABLE Jobs; --"},
    {"run_id": None},
    {"run_id": ["a"]},
    {"run_id": {}},
    {"run_id": "{00000000-0000-0000-0000-000000000000}"},
    {"run_id": "00000000-0000-0000-0000-00000000000A"},
    {"run_id": "00000000-0000-0000-0000-000000000000\n"},
    {"run_id": "00000000-0000-0000-0000-00000000000\u0665"},
    {"claim_id": "\0" * 36},
    {"claim_id": "a" * 10_000_000},
    {"claim_id": b"00000000-0000-0000-0000-000000000000"},
    {"claim_id": 7},
    {"celery_retries": "0"},
    {"celery_retries": 2**31},
    {"celery_retries": -1},
    {"celery_retries": None},
]


@pytest.mark.parametrize("fields", HOSTILE, ids=lambda fields: repr(fields)[:60])
def test_what_no_claim_of_ours_can_be_never_reaches_the_database(fields: dict[str, Any]) -> None:
    rig = Rig()
    good, bad = rig.claims(2)
    request = rig.ask(good)
    forged = rig.world.request(bad)._replace(**fields)
    heard: list[Any] = []
    rig.lease_manager.ask(StartQuestion(forged, heard.append))
    rig.settle()
    assert [type(one) for one in heard] == [StaleMessage]
    assert rig.line.rows == [("start", 1)]
    assert rig.run_lease(request).take()


def test_so_many_messages_may_wait_and_no_more() -> None:
    rig = Rig(Timing(most_asks=3))
    rig.line.is_unavailable = True
    requests = [rig.ask(claim) for claim in rig.claims(5)]
    rig.settle()
    assert [type(rig.answer(one)) for one in requests] == [type(None)] * 3 + [StoreUnavailable] * 2


def test_one_request_that_the_database_refuses_does_not_hold_up_the_others() -> None:
    rig = Rig()
    claims = rig.claims(40)
    requests = [rig.ask(claim) for claim in claims]
    rig.line.bad[claims[7].run_id] = REFUSED
    rig.run_for(1)
    answers = [type(rig.answer(one)) for one in requests]
    assert answers == [StoreUnavailable if at == 7 else Started for at in range(40)]
    assert rig.line.sent["start"] < 40


def test_one_job_that_somebody_keeps_locked_does_not_hold_up_the_others() -> None:
    rig = Rig()
    claims = rig.claims(40)
    requests = [rig.ask(claim) for claim in claims]
    rig.line.bad[claims[7].run_id] = BUSY
    rig.run_for(2)
    assert [type(rig.answer(one)) for one in requests if one is not requests[7]] == [Started] * 39
    assert rig.answer(requests[7]) is None
    late = rig.ask(rig.claim())
    rig.settle()
    assert isinstance(rig.answer(late), Started), "what comes later does not wait for it either"
    del rig.line.bad[claims[7].run_id]
    rig.run_for(10)
    assert isinstance(rig.answer(requests[7]), Started)


def test_under_steady_load_what_failed_in_a_batch_gets_its_turn() -> None:
    rig = Rig()
    bad, *_ = claims = rig.claims(30)
    requests = [rig.ask(claim) for claim in claims]
    rig.line.bad[bad.run_id] = BUSY
    for _ in range(40):
        rig.ask(rig.claim())
        rig.lease_manager.turn()
        rig.later(0.01)
    assert [type(rig.answer(one)) for one in requests[1:]] == [Started] * 29


def test_a_start_that_begins_too_late_to_be_safe_is_given_back() -> None:
    """The process stood still between the statement and its answer: the lease is nearly over."""
    rig = Rig()
    claim = rig.claim()
    request = rig.ask(claim)
    rig.line.after = lambda kind: rig.later(115)
    rig.settle()
    rig.line.after = lambda kind: None
    rig.settle()
    assert isinstance(rig.answer(request), StoreUnavailable)
    assert rig.state(claim) == "scheduled"


def test_an_answer_that_nobody_takes_is_given_back() -> None:
    rig = Rig()
    claim = rig.claim()

    def fail(answer: object) -> None:
        raise RuntimeError("no slot")

    rig.lease_manager.ask(StartQuestion(rig.world.request(claim), fail))
    rig.settle()
    rig.settle()
    assert rig.state(claim) == "scheduled" and rig.lease_manager.held == 0


def test_a_lease_that_came_ahead_of_its_slot_is_given_back_after_a_second() -> None:
    rig = Rig()
    claim = rig.claim()
    request = rig.ask(claim, ahead=True)
    rig.run_for(0.9)
    assert rig.run_lease(request).phase is Phase.LEASED
    rig.run_for(0.2)
    assert not rig.run_lease(request).take()
    assert rig.state(claim) == "scheduled" and rig.lease_manager.held == 0


def test_no_lease_is_kept_for_long_that_nobody_takes() -> None:
    """Whoever heard the answer is busy, or has forgotten it."""
    rig = Rig()
    claim = rig.claim()
    request = rig.ask(claim)
    rig.run_for(14)
    assert rig.run_lease(request).phase is Phase.LEASED
    rig.run_for(2)
    assert not rig.run_lease(request).take()
    assert rig.state(claim) == "scheduled" and rig.lease_manager.held == 0


def test_a_lease_that_came_ahead_and_was_taken_stays() -> None:
    rig = Rig()
    claim = rig.claim()
    request = rig.ask(claim, ahead=True)
    rig.run_for(0.9)
    assert rig.run_lease(request).take()
    assert not rig.run_lease(request).take(), "a body begins once"
    rig.run_for(10)
    assert rig.state(claim) == "running"


def test_a_message_whose_earlier_try_is_being_stopped_is_dropped() -> None:
    rig = Rig()
    claim = rig.claim()
    run_lease = rig.begin(claim)
    rig.line.is_unavailable = True
    rig.run_for(115)
    assert rig.is_lost(run_lease)
    rig.line.is_unavailable = False
    again = rig.ask(claim, celery_retries=1)
    rig.settle()
    assert isinstance(rig.answer(again), StaleMessage)


def test_closing_answers_what_waits_and_gives_back_what_has_not_begun() -> None:
    rig = Rig()
    first, second, third = rig.claims(3)
    ahead = rig.ask(first, ahead=True)
    rig.settle()
    rig.line.is_unavailable = True
    waiting = rig.ask(second)
    rig.settle()
    rig.lease_manager.close()
    later = rig.ask(third)
    rig.settle()
    assert isinstance(rig.answer(waiting), StoreUnavailable) and isinstance(rig.answer(later), StoreUnavailable)
    assert not rig.is_idle(), "the first is not given back yet, and the second may have begun"
    rig.line.is_unavailable = False
    rig.run_for(3)
    assert rig.is_idle()
    assert [rig.state(one) for one in (first, second, third)] == ["scheduled", "claimed", "claimed"] or [
        rig.state(one) for one in (first, second, third)
    ] == ["scheduled", "scheduled", "claimed"]
    assert not rig.run_lease(ahead).take()


def test_the_question_is_asked_in_batches_of_bounded_size() -> None:
    rig = Rig(AT_ONCE._replace(batch_size=10))
    requests = [rig.ask(claim) for claim in rig.claims(25)]
    rig.settle()
    assert rig.line.rows == [("start", 10), ("start", 10), ("start", 5)]
    assert all(isinstance(rig.answer(one), Started) for one in requests)


def test_an_error_that_is_no_outage_of_everything_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    claim = rig.claim()
    request = rig.ask(claim)
    rig.line.bad[claim.run_id] = REFUSED
    rig.settle()
    rig.run_for(5)
    assert rig.answer(request) == StoreUnavailable("refused")
    assert caplog.text.count("action=start") == 1
    assert claim.claim_id not in caplog.text, "the claim id is a secret"


def test_an_outage_in_the_middle_of_a_batch_in_pieces_loses_nothing() -> None:
    rig = Rig()
    claims = rig.claims(20)
    requests: list[StartRequest] = [rig.ask(claim) for claim in claims]
    rig.line.bad = {claims[3].run_id: BUSY, claims[11].run_id: AWAY}
    rig.run_for(1)
    rig.line.bad = {}
    rig.run_for(5)
    assert all(isinstance(rig.answer(one), Started) for one in requests)
