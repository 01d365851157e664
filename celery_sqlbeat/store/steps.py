"""Work on the database in steps, for who must not wait for it: an event loop does other things between two of them."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[int | None, bool | None, T]
"""Yields the file that can be read before the next step; None where the next step may take long.

Who goes on with `send(True)` may wait, and need not look at the file. Another thread may go on than the one that began.
"""


def run(steps: Steps[T]) -> T:
    """Take all the steps that are left, and wait where there is something to wait for."""
    try:
        next(steps)
        while True:
            steps.send(True)
    except StopIteration as done:
        result: T = done.value
        return result
