"""Two bytes for each run of this process, that its lease is lost and that its task succeeded; children share them.

The memory is made before the first fork, so that children see it whenever they are forked.
"""

import mmap
from collections import deque

_MOST = 65536  # runs of one process at a time; a run beyond has no mark of its own, and is stopped all the same


class Marks:
    """Shared memory: the main process says what is lost, the process of a task that it succeeded; each has its byte."""

    def __init__(self, most: int = _MOST) -> None:
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
        return place

    def set(self, place: int | None) -> None:
        """Say that the run's lease is lost."""
        if place is not None:
            self._memory[place] = 1

    def give_back(self, place: int | None) -> None:
        """The run is over; its place goes to the end of the line, so that who still asks for it is told the truth."""
        if place is not None:
            self._free.append(place)

    def is_set(self, place: int | None) -> bool:
        """Whether the run's lease is lost."""
        return place is not None and 0 <= place < self._most and self._memory[place] != 0

    def succeed(self, place: int | None) -> None:
        """Say that the run's task succeeded, and that its result is stored."""
        if place is not None and 0 <= place < self._most:
            self._memory[self._most + place] = 1

    def has_succeeded(self, place: int | None) -> bool:
        """Whether the run's task succeeded, even if its process ended before it could report so."""
        return place is not None and self._memory[self._most + place] != 0
