"""Whose turn it is, of several beats on a busy table: whoever lost a race lets the others go first for a while.

Without it each of N beats would wake for each slot, and N - 1 of them for nothing.
"""

from collections.abc import Callable

_LAG_SECONDS = 0.050  # the spacing of the others and their claim fit in; so late is a slot whose claimant died
_LASTS_SECONDS = 1.0  # slots that are further apart find every beat on time


class Turns:
    """How late this beat is on purpose."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock()

    def won(self) -> None:
        """This beat has claimed something, so it is on time again."""
        self._until = self._clock()

    def lost(self) -> None:
        """Another beat was faster: this one comes later, and claims what is left by then."""
        self._until = self._clock() + _LASTS_SECONDS

    def lag(self, seconds: float = 0.0) -> float:
        """How late it is for what is due in so many seconds."""
        return _LAG_SECONDS if self._clock() + max(0.0, seconds) < self._until else 0.0
