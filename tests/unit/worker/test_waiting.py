"""How one row that fails is told from the others, and how long nothing is asked."""

from celery_sqlbeat.worker.waiting import Pause, Waiting, next_batches, split


class Row(Waiting):
    def __init__(self, run: str, most: int = 500) -> None:
        super().__init__(most)
        self.run = run


def runs(batches: list[list[Row]]) -> list[list[str]]:
    return [[one.run for one in batch] for batch in batches]


def rows(*names: str, most: int = 500) -> list[Row]:
    return [Row(name, most) for name in names]


def test_a_batch_has_each_run_once_and_keeps_the_order() -> None:
    assert runs(next_batches(rows("c", "a", "c", "b"), 0.0, lambda one: one.run)) == [["c", "a", "b"]]


def test_a_batch_is_bounded() -> None:
    assert runs(next_batches(rows(*"abcde", most=2), 0.0, lambda one: one.run)) == [["a", "b"]]


def test_what_waits_for_its_time_is_left_out() -> None:
    found = rows("a", "b")
    found[0].not_before = 5.0
    assert runs(next_batches(found, 4.9, lambda one: one.run)) == [["b"]]
    assert runs(next_batches(found, 5.0, lambda one: one.run)) == [["a", "b"]]
    assert next_batches([], 0.0, lambda one: "") == []


def test_what_failed_together_is_asked_in_pieces_beside_what_did_not_fail() -> None:
    failed = rows(*(str(number) for number in range(64)))
    assert split(failed, 0.0) is None
    batches = runs(next_batches([*failed, *rows("new")], 0.0, lambda one: one.run))
    assert batches == [["new"], ["0", "1", "2", "3"]]


def test_two_steps_find_one_bad_row_among_256() -> None:
    failed = rows(*(str(number) for number in range(256)))
    for _ in range(2):
        assert split(failed, 0.0) is None
        failed = next_batches(failed, 0.0, lambda one: one.run)[0]
    assert len(failed) == 1 and split(failed, 0.0) is failed[0]


def test_a_row_that_failed_alone_waits_longer_each_time_and_stays_alone() -> None:
    (row,) = rows("a")
    waits = []
    for _ in range(8):
        assert split([row], 100.0) is row
        waits.append(row.not_before - 100.0)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert row.most == 1


def test_nothing_is_asked_for_longer_and_longer_until_the_database_answers() -> None:
    pause = Pause(lambda: 1.0)
    waits = []
    for _ in range(6):
        pause.failed(100.0)
        waits.append(pause.until - 100.0)
    assert waits == [0.25, 0.5, 1, 1, 1, 1]
    pause.succeeded()
    pause.failed(100.0)
    assert pause.until == 100.25


def test_half_of_such_a_pause_is_jitter() -> None:
    pause = Pause(lambda: 0.0)
    pause.failed(100.0)
    assert pause.until == 100.125
