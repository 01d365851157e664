"""Writes a batch although the database refuses one of its rows: in halves, down to the row to blame.

Only what is wrong with a row is halved. What keeps the database from answering concerns all rows alike, and is raised.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from celery_sqlbeat.errors import RowRefused

R = TypeVar("R")


def in_halves(
    rows: Sequence[R],
    write: Callable[[Sequence[R]], None],
    refused: Callable[[R, RowRefused], None],
    first: RowRefused | None = None,
) -> None:
    """Write the rows, in their order; those that are refused by themselves are handed to `refused`.

    `first`: what the whole batch was refused with, where that was tried already.
    """
    waiting = [rows] if rows else []
    while waiting:
        part = waiting.pop()
        error, first = first, None
        if error is None:
            try:
                write(part)
                continue
            except RowRefused as found:
                error = found
        if len(part) == 1:
            refused(part[0], error)
        else:
            middle = len(part) // 2
            waiting += [part[middle:], part[:middle]]
