"""Classify errors by their SQLSTATE, and write around a refused row.

A batch with a refused row is written in halves, down to that row. An error that keeps the database
from answering concerns all rows, and is raised.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from celery_sqlbeat import events
from celery_sqlbeat.errors import RowRefused
from celery_sqlbeat.model import LONGEST_QUARANTINE
from celery_sqlbeat.store.faults import Fault

R = TypeVar("R")
RunRow = TypeVar("RunRow", bound=tuple[Any, ...])


def by_state(states: Mapping[str, Fault], state: str) -> Fault:
    """Return the class of a SQLSTATE, by its longest known prefix.

    A state that no table has never means that a retry is in vain.
    """
    for length in (5, 3, 2):
        fault = states.get(state[:length])
        if fault is not None:
            return fault
    return Fault.UNKNOWN


def in_halves(
    rows: Sequence[R],
    write: Callable[[Sequence[R]], None],
    refused: Callable[[R, RowRefused], None],
    first: RowRefused | None = None,
) -> None:
    """Write the rows, in their order, and hand those that are refused by themselves to `refused`.

    `first`: the error of the whole batch, where that was tried already.
    """
    waiting = [rows] if rows else []
    while waiting:
        part = waiting.pop()
        error, first = first, None
        if error is None:
            try:
                write(part)
                continue
            except RowRefused as caught:
                error = caught
        if len(part) == 1:
            refused(part[0], error)
        else:
            middle = len(part) // 2
            waiting += [part[middle:], part[:middle]]


def write_runs(rows: Sequence[RunRow], write: Callable[[Sequence[RunRow]], set[str]], action: str) -> set[str]:
    """Write rows with a run id in second place, and log those that are refused."""
    done: set[str] = set()
    in_halves(
        rows,
        lambda part: done.update(write(part)),
        lambda row, why: events.row_refused(action=action, row=row[1], error=why),
    )
    return done


def refusal(text: str) -> str:
    """Return the reason for a job's quarantine after the database has refused its row."""
    return f"the database refuses this row: {text}"[:LONGEST_QUARANTINE]
