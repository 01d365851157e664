"""What a process of the pool and the main process tell each other about a run, in memory that they share.

The memory is made before the first fork, so that children see it whenever they are forked.
"""

import mmap
from collections import deque
from typing import TypeGuard

_MOST = 65536  # runs of one process at a time; a run beyond has no mark of its own, and is stopped all the same
_DOUBLE = 8  # bytes


class Marks:
    """The main process says what is lost and how long a lease is safe, the process of a task that it succeeded.

    Each of them has a place of its own that nobody else writes.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._until = memoryview(mmap.mmap(-1, _DOUBLE * most)).cast("d")
        self._memory = mmap.mmap(-1, 2 * most)
        self._most = most
        self._free = deque(range(most))

    def take(self) -> int | None:
        """The place of a new run, which is not lost."""
        try:
            place = self._free.popleft()
        except IndexError:
            return None
        self._memory[place] = self._memory[self._most + place] = 0
        self._until[place] = 0.0
        return place

    def set(self, place: int | None) -> None:
        """Say that the run's lease is lost."""
        if place is not None:
            self._memory[place] = 1

    def extend(self, place: int | None, until: float) -> None:
        """Say until when the run's lease is safe, by the monotonic clock, which all processes of a machine share."""
        if place is not None:
            self._until[place] = until

    def give_back(self, place: int | None) -> None:
        """The run is over; its place goes to the end of the line, so that who still asks for it is told the truth."""
        if place is not None:
            self._free.append(place)

    def is_set(self, place: int | None) -> bool:
        """Whether the run's lease is lost."""
        return self._has(place) and self._memory[place] != 0

    def is_safe(self, place: int | None, now: float) -> bool:
        """Whether the run's lease is neither lost nor about to end; of a run without a place nobody knows better."""
        return not self._has(place) or (self._memory[place] == 0 and now < self._until[place])

    def succeed(self, place: int | None) -> None:
        """Say that the run's task succeeded, and that its result is stored."""
        if self._has(place):
            self._memory[self._most + place] = 1

    def has_succeeded(self, place: int | None) -> bool:
        """Whether the run's task succeeded, even if its process ended before it could report so."""
        return self._has(place) and self._memory[self._most + place] != 0

    def _has(self, place: int | None) -> TypeGuard[int]:
        return place is not None and 0 <= place < self._most
