"""A batch of which the database refuses some rows.

The others are written, and each of those is told by itself.
"""

from collections.abc import Sequence

import pytest

from celery_sqlbeat.errors import DatabaseUnavailable, RowRefused
from celery_sqlbeat.store.sql.faults import in_halves


@pytest.mark.parametrize("bad", [set(), {0}, {6}, {2, 3}, set(range(7))], ids=str)
def test_all_rows_are_written_but_those_that_are_refused(bad: set[int]) -> None:
    written: list[int] = []
    refused: list[int] = []

    def write(part: Sequence[int]) -> None:
        if bad & set(part):
            raise RowRefused(str(sorted(bad & set(part))))
        written.extend(part)

    in_halves(range(7), write, lambda row, _: refused.append(row))
    assert (set(written), set(refused)) == (set(range(7)) - bad, bad)
    assert written == sorted(written) and refused == sorted(refused)


def test_one_bad_row_among_many_costs_few_statements() -> None:
    calls: list[int] = []

    def write(part: Sequence[int]) -> None:
        calls.append(len(part))
        if 300 in part:
            raise RowRefused("no")

    in_halves(range(512), write, lambda row, _: None)
    assert len(calls) <= 2 * 9 + 1


def test_a_batch_that_was_tried_already_is_not_tried_again() -> None:
    calls: list[Sequence[int]] = []
    in_halves([1, 2], calls.append, lambda row, _: None, RowRefused("no"))
    assert calls == [[1], [2]]


def test_no_row_is_to_blame_while_the_database_is_away() -> None:
    def write(_: Sequence[int]) -> None:
        raise DatabaseUnavailable("gone")

    with pytest.raises(DatabaseUnavailable):
        in_halves([1, 2], write, lambda row, _: None)
