"""What a process of the pool and the main process tell each other about a run, in memory that they share.

The memory is made before the first fork, so that children see it whenever they are forked.
"""

import mmap
from collections import deque
from typing import TypeGuard

from celery_sqlbeat.worker import native

_MOST = 65536  # runs of one process at a time; a run beyond has no mark of its own, and is stopped all the same
_DOUBLE = 8  # bytes
_LOST, _SUCCEEDED, _BEGUN, _FORBIDDEN, _RETRIES, _RETURNED = range(6)  # the bytes of each run
_BYTES = 6


class Marks:
    """The main process says what is lost or forbidden and how long a lease is safe, that of a task how far it has come.

    Each word has a byte of its own, which only one of the two writes.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._until = memoryview(mmap.mmap(-1, _DOUBLE * most)).cast("d")
        self._retries_at = memoryview(mmap.mmap(-1, _DOUBLE * most)).cast("d")
        self._memory = mmap.mmap(-1, _BYTES * most)
        self._most = most
        self._free = deque(range(most))

    def take(self) -> int | None:
        """The place of a new run, which is not lost."""
        try:
            place = self._free.popleft()
        except IndexError:
            return None
        self._memory[_BYTES * place : _BYTES * (place + 1)] = bytes(_BYTES)
        self._until[place] = 0.0
        return place

    def set(self, place: int | None) -> None:
        """Say that the run's lease is lost."""
        self._say(place, _LOST)

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
        return self._says(place, _LOST)

    def begin(self, place: int | None, now: float) -> bool:
        """Say that the run's body begins; False where it may not. Of a run without a place nobody knows better."""
        self._say(place, _BEGUN)
        _see_others()  # `begin` and `forbid` each speak before they look, so that at least one hears the other
        if not self._has(place):
            return True
        return not self._says(place, _LOST) and not self._says(place, _FORBIDDEN) and now < self._until[place]

    def has_begun(self, place: int | None) -> bool:
        """Whether a process of the pool has begun the run's body, or was about to."""
        return self._says(place, _BEGUN)

    def forbid(self, place: int | None) -> bool:
        """Let the run's body begin no more; False where it has begun, or where nobody knows."""
        self._say(place, _FORBIDDEN)
        _see_others()
        return self._has(place) and not self._says(place, _BEGUN)

    def succeed(self, place: int | None) -> None:
        """Say that the run's task succeeded, and that its result is stored."""
        self._say(place, _SUCCEEDED)

    def has_succeeded(self, place: int | None) -> bool:
        """Whether the run's task succeeded, even if its process ended before it could report so."""
        return self._says(place, _SUCCEEDED)

    def note_return(self, place: int | None) -> None:
        """Say that the run's body returned; what Celery does with its result is still to come."""
        self._say(place, _RETURNED)

    def has_returned(self, place: int | None) -> bool:
        """Whether the run's body returned, whatever became of its result and its callbacks."""
        return self._says(place, _RETURNED)

    def retry(self, place: int | None, at: float) -> None:
        """Say that the run's task has sent itself again, for this instant by the clock of this machine."""
        if self._has(place):
            self._retries_at[place] = at
            self._say(place, _RETRIES)

    def retries_at(self, place: int | None) -> float | None:
        """When the retry that the run's task has sent is due; None where it has sent none."""
        return self._retries_at[place] if self._has(place) and self._says(place, _RETRIES) else None

    def _say(self, place: int | None, word: int) -> None:
        if self._has(place):
            self._memory[_BYTES * place + word] = 1

    def _says(self, place: int | None, word: int) -> bool:
        return self._has(place) and self._memory[_BYTES * place + word] != 0

    def _has(self, place: int | None) -> TypeGuard[int]:
        return place is not None and 0 <= place < self._most


def _see_others() -> None:
    """Let what this process has written be seen before it reads on: a processor may do the two in another order."""
    native.lock().acquire()  # an atomic instruction; of a new lock each time, since a fork could copy a taken one
