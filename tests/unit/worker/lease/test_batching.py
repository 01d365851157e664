"""When the next batch of statements goes out, and what its failure means for each row."""

import pytest

from celery_sqlbeat.errors import DatabaseBusy, DatabaseUnavailable, StoreError
from celery_sqlbeat.model.lifecycle import after_success
from celery_sqlbeat.worker.lease.batching import Batcher, QueuedRow, Timing, next_batches, split
from tests.unit.worker.rig import Rig

NOW = 100.0


def made(chance: float = 0.5) -> Batcher:
    return Batcher(lambda: NOW, lambda: chance, spacing=0.100)


def test_the_first_rows_after_a_while_go_at_once_and_the_next_after_the_spacing() -> None:
    batcher = made()
    assert batcher.sends(NOW)
    assert not batcher.sends(NOW + 0.04) and batcher.opens_at == NOW + 0.1
    assert batcher.sends(NOW + 0.1)


def test_the_spacing_is_shorter_while_somebody_waits() -> None:
    batcher = made()
    batcher.sends(NOW)
    assert batcher.flush_soon(0.010)
    assert not batcher.flush_soon(0.050), "the next statement goes within 10 ms already"
    assert batcher.opens_at == NOW + 0.010
    assert batcher.flush_soon(0.001)


def test_hurry_ends_with_the_batch_that_was_waited_for() -> None:
    batcher = made()
    batcher.sends(NOW)
    batcher.flush_soon(0.010)
    assert batcher.sends(NOW + 0.02)
    assert batcher.opens_at == pytest.approx(NOW + 0.12)


def test_a_batcher_that_closes_waits_for_nothing() -> None:
    batcher = made()
    batcher.sends(NOW)
    batcher.close()
    assert batcher.sends(NOW + 0.01)


def test_while_the_database_is_away_nothing_goes_out_and_no_row_is_to_blame() -> None:
    batcher, row = made(), QueuedRow("run", 500)
    assert batcher.opens_at <= NOW
    assert batcher.failed([row], DatabaseUnavailable("gone")) is None
    assert batcher.opens_at > NOW and row.failures == 0
    assert batcher.is_unavailable
    batcher.succeeded()
    assert batcher.sends(NOW + 1) and not batcher.is_unavailable


def test_nothing_is_asked_for_longer_and_longer_until_the_database_answers() -> None:
    batcher, row, gone = made(1.0), QueuedRow("run", 500), DatabaseUnavailable("gone")
    waits = []
    for _ in range(6):
        batcher.failed([row], gone)
        waits.append(batcher.opens_at - NOW)
    assert waits == [0.25, 0.5, 1, 1, 1, 1]
    batcher.succeeded()
    batcher.failed([row], gone)
    assert batcher.opens_at == NOW + 0.25


def test_half_of_such_a_pause_is_jitter() -> None:
    batcher, row = made(0.0), QueuedRow("run", 500)
    batcher.failed([row], DatabaseUnavailable("gone"))
    assert batcher.opens_at == NOW + 0.125


def test_a_row_that_is_refused_alone_is_returned_and_a_locked_one_waits() -> None:
    batcher, refused, locked = made(), QueuedRow("run", 500), QueuedRow("run", 500)
    assert batcher.failed([refused], StoreError("no")) is refused
    assert batcher.failed([locked], DatabaseBusy("locked")) is None
    assert batcher.opens_at <= NOW < locked.not_before


def test_a_batch_that_fails_goes_out_in_pieces() -> None:
    batcher, batch = made(), [QueuedRow(str(number), 500) for number in range(32)]
    assert batcher.failed(batch, StoreError("one of them")) is None
    assert {row.most for row in batch} == {2} and batch[0].not_before <= NOW


def runs(batches: list[list[QueuedRow]]) -> list[list[str]]:
    return [[one.run_id for one in batch] for batch in batches]


def rows(*names: str, most: int = 500) -> list[QueuedRow]:
    return [QueuedRow(name, most) for name in names]


def test_a_batch_has_each_run_once_and_keeps_the_order() -> None:
    assert runs(next_batches(rows("c", "a", "c", "b"), 0.0)) == [["c", "a", "b"]]


def test_a_batch_takes_no_more_than_its_most_rows() -> None:
    assert runs(next_batches(rows(*"abcde", most=2), 0.0)) == [["a", "b"]]


def test_what_waits_for_its_time_is_left_out() -> None:
    found = rows("a", "b")
    found[0].not_before = 5.0
    assert runs(next_batches(found, 4.9)) == [["b"]]
    assert runs(next_batches(found, 5.0)) == [["a", "b"]]
    assert next_batches([], 0.0) == []


def test_what_failed_together_is_asked_in_pieces_beside_what_did_not_fail() -> None:
    failed = rows(*(str(number) for number in range(64)))
    assert split(failed, 0.0) is None
    batches = runs(next_batches([*failed, *rows("new")], 0.0))
    assert batches == [["new"], ["0", "1", "2", "3"]]


def test_two_steps_find_one_bad_row_among_256() -> None:
    failed = rows(*(str(number) for number in range(256)))
    for _ in range(2):
        assert split(failed, 0.0) is None
        failed = next_batches(failed, 0.0)[0]
    assert len(failed) == 1 and split(failed, 0.0) is failed[0]


def test_a_row_that_failed_alone_waits_longer_each_time_and_stays_alone() -> None:
    (row,) = rows("a")
    waits = []
    for _ in range(8):
        assert split([row], 100.0) is row
        waits.append(row.not_before - 100.0)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert row.most == 1


def busy(rig: Rig, seconds: float, outcomes: bool = False) -> None:
    """Let a worker begin, and where wanted end, a thousand runs a second, each asked ahead."""
    claims = rig.claims(round(seconds * 1000))
    for claim in claims:
        request = rig.ask(claim, ahead=True)
        rig.run_for(0.001)
        if outcomes and rig.answer(request):
            rig.take(rig.run_lease(request))
            rig.lease_manager.finish(rig.run_lease(request), after_success())


def test_at_a_thousand_runs_a_second_twenty_share_a_statement() -> None:
    rig = Rig(Timing())
    busy(rig, 0.1)
    rig.line.sent.clear()
    busy(rig, 0.2)
    assert 9 <= rig.line.sent["start"] <= 12


def test_a_message_with_capacity_in_hand_asks_soon() -> None:
    rig = Rig(Timing())
    busy(rig, 0.1)
    request = rig.ask(rig.claim())
    rig.run_for(Timing().start_spacing + 0.0001)
    assert rig.answer(request) is not None


def test_capacity_that_comes_for_what_was_asked_ahead_makes_it_ask_soon() -> None:
    rig = Rig(Timing())
    busy(rig, 0.1)
    first = rig.ask(rig.claim(), ahead=True)
    while rig.answer(first) is None:  # from here on a new batch gathers
        rig.run_for(0.001)
    request = rig.ask(rig.claim(), ahead=True)
    rig.lease_manager.serve()
    assert rig.answer(request) is None
    woken = rig.woken["serve"]
    rig.lease_manager.flush_soon()
    assert rig.woken["serve"] == woken + 1
    rig.run_for(Timing().start_spacing)
    assert rig.answer(request) is not None


def test_closing_waits_for_nothing() -> None:
    rig = Rig(Timing())
    busy(rig, 0.1, outcomes=True)
    rig.lease_manager.close()
    rig.settle()
    assert rig.is_idle()


def test_what_comes_while_the_step_gathers_does_not_wake_it() -> None:
    rig = Rig(Timing())
    busy(rig, 0.1)
    for _ in range(40):
        request = rig.ask(rig.claim(), ahead=True)
        if rig.lease_manager.serve() > Timing().start_spacing and rig.answer(request) is None:
            break
        rig.later(0.001)
    assert rig.answer(request) is None
    woken = rig.woken["serve"]
    rig.ask(rig.claim(), ahead=True)
    assert rig.woken["serve"] == woken
    rig.ask(rig.claim())
    assert rig.woken["serve"] == woken + 1, "a message with capacity in hand does"
