"""When what waits for a statement goes out, and what a failure means for whom."""

from celery_sqlbeat.errors import DatabaseAway, DatabaseBusy, StoreError
from celery_sqlbeat.worker.line import Line
from celery_sqlbeat.worker.waiting import Waiting

NOW = 100.0


def line() -> Line:
    return Line(lambda: NOW, lambda: 0.5, longest=0.100, enough=16)


def crowded(at: float = NOW) -> Line:
    """A line into which a row comes every millisecond, so that it is worth to wait for more."""
    made = line()
    for milliseconds in range(200):
        made.came(1, at - 0.2 + 0.001 * milliseconds)
        if milliseconds < 195:
            made.gathers(float("inf"))
    return made


def test_a_crowd_gathers_for_so_long_and_for_less_where_somebody_waits() -> None:
    unhurried, hurried = crowded(), crowded()
    assert hurried.hurry(0.010)
    assert 0.09 < unhurried.gathers(NOW) <= 0.1
    assert 0.0 <= hurried.gathers(NOW) < 0.01


def test_who_can_wait_least_decides_for_the_batch() -> None:
    made = crowded()
    assert made.hurry(0.010)
    assert not made.hurry(0.050), "they all go within 10 ms already"
    assert made.gathers(NOW) < 0.01
    assert made.hurry(0.001)


def test_a_line_that_closes_gathers_no_more() -> None:
    made = crowded()
    made.close()
    assert made.gathers(NOW) == 0.0


def test_hurry_ends_with_the_batch_that_was_waited_for() -> None:
    made = crowded()
    made.hurry(0.010)
    assert made.gathers(NOW + 0.02) == 0.0
    for milliseconds in range(5):
        made.came(1, NOW + 0.021 + 0.001 * milliseconds)
    assert made.gathers(NOW + 0.026) > 0.05


def test_while_the_database_is_away_nothing_goes_out_and_no_row_is_to_blame() -> None:
    made, row = line(), Waiting(500)
    assert made.is_open(NOW)
    assert made.failed([row], DatabaseAway("gone")) is None
    assert not made.is_open(NOW) and made.goes_at(row) > NOW and row.failures == 0
    made.succeeded()
    assert made.is_open(NOW + 1)


def test_a_row_that_is_refused_alone_is_returned_and_a_locked_one_waits() -> None:
    made, refused, locked = line(), Waiting(500), Waiting(500)
    assert made.failed([refused], StoreError("no")) is refused
    assert made.failed([locked], DatabaseBusy("locked")) is None
    assert made.is_open(NOW) and made.goes_at(locked) > NOW


def test_a_batch_that_fails_goes_out_in_pieces() -> None:
    made, rows = line(), [Waiting(500) for _ in range(32)]
    assert made.failed(rows, StoreError("one of them")) is None
    assert {row.most for row in rows} == {2} and made.goes_at(rows[0]) <= NOW
