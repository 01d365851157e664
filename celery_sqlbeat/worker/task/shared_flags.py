"""Flags of runs in memory that a worker's processes share, made before the first fork."""

import mmap
from collections import deque
from typing import TypeGuard

from celery_sqlbeat import environment

_MOST = 65536  # runs of one process at a time; one beyond has no flags, and is stopped all the same
_DOUBLE = 8  # bytes
_LOST, _SUCCEEDED, _BEGUN, _FORBIDDEN, _RETRIES, _RETURNED, _CANCELLED, _GIVEN_UP, _DONE_BY = range(9)
_BYTES = 9  # of each run
_HIGHEST = 255  # of a byte


class SharedFlags:
    """Flags of runs in shared memory: a byte each, which only one of the two processes writes.

    A run's number in this memory is its place; without one (None) nothing is known of the run.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._until = memoryview(mmap.mmap(-1, _DOUBLE * most)).cast("d")
        self._retries_at = memoryview(mmap.mmap(-1, _DOUBLE * most)).cast("d")
        self._memory = mmap.mmap(-1, _BYTES * most)
        self._most = most
        self._free = deque(range(most))

    def take(self) -> int | None:
        """Take the place of a new run; None where all are taken."""
        try:
            place = self._free.popleft()
        except IndexError:
            return None
        self._memory[_BYTES * place : _BYTES * (place + 1)] = bytes(_BYTES)
        self._until[place] = 0.0
        return place

    def set(self, place: int | None) -> None:
        """Note that the run's lease is lost."""
        self._note(place, _LOST)

    def cancel(self, place: int | None) -> None:
        """Note that somebody has cancelled the run."""
        self._note(place, _CANCELLED)

    def is_cancelled(self, place: int | None) -> bool:
        """Return whether somebody has cancelled the run."""
        return self._is_noted(place, _CANCELLED)

    def extend(self, place: int | None, until: float) -> None:
        """Note until when the lease is safe, by the monotonic clock that all processes share."""
        if place is not None:
            self._until[place] = until

    def release(self, place: int | None) -> None:
        """Give the place of an ended run back, to be taken last, for those that still read it."""
        if place is not None:
            self._free.append(place)

    def is_set(self, place: int | None) -> bool:
        """Return whether the run's lease is lost."""
        return self._is_noted(place, _LOST)

    def begin(self, place: int | None, now: float) -> bool:
        """Note that the body begins; False where it may not."""
        self._note(place, _BEGUN)
        _publish_writes()  # `begin` and `forbid` write before they read: at least one sees the other
        return not self._is_noted(place, _FORBIDDEN) and self.is_safe(place, now)

    def is_safe(self, place: int | None, now: float) -> bool:
        """Return whether a body may begin: nobody else can have the run yet, nobody cancelled it.

        True where nothing is known of it.
        """
        if not self._has(place):
            return True
        must_stop = self._is_noted(place, _LOST) or self._is_noted(place, _CANCELLED)
        return not must_stop and now < self._until[place]

    def has_begun(self, place: int | None) -> bool:
        """Return whether a process of the pool has begun the body, or was about to."""
        return self._is_noted(place, _BEGUN)

    def forbid(self, place: int | None) -> bool:
        """Let the body begin no more; False where it has begun, or where it has no place."""
        self._note(place, _FORBIDDEN)
        _publish_writes()
        return self._has(place) and not self._is_noted(place, _BEGUN)

    def succeed(self, place: int | None) -> None:
        """Note that the task succeeded, and that its result is stored."""
        self._note(place, _SUCCEEDED)

    def has_succeeded(self, place: int | None) -> bool:
        """Return whether the task succeeded, even if its process ended before it reported so."""
        return self._is_noted(place, _SUCCEEDED)

    def note_return(self, place: int | None) -> None:
        """Note that the body returned; Celery has yet to store its result."""
        self._note(place, _RETURNED)

    def has_returned(self, place: int | None) -> bool:
        """Return whether the body returned, whatever became of its result and its callbacks."""
        return self._is_noted(place, _RETURNED)

    def give_up(self, place: int | None) -> None:
        """Note that the body raised what is not tried again."""
        self._note(place, _GIVEN_UP)

    def has_given_up(self, place: int | None) -> bool:
        """Return whether the failure was found to be the last one where it was raised."""
        return self._is_noted(place, _GIVEN_UP)

    def note_done(self, place: int | None, attempt: int) -> None:
        """Note by which attempt the effects of the slot were done before this one began."""
        if self._has(place):
            self._memory[_BYTES * place + _DONE_BY] = min(attempt, _HIGHEST)

    def done_by(self, place: int | None) -> int | None:
        """Return by which attempt the effects of the slot were done before this one; or None."""
        return (self._memory[_BYTES * place + _DONE_BY] or None) if self._has(place) else None

    def retry(self, place: int | None, at: float) -> None:
        """Note that the task has sent itself again, for this instant by the machine's clock."""
        if self._has(place):
            self._retries_at[place] = at
            self._note(place, _RETRIES)

    def retries_at(self, place: int | None) -> float | None:
        """Return when the retry that the task has sent is due; None where it has sent none."""
        return self._retries_at[place] if self._has(place) and self._is_noted(place, _RETRIES) else None

    def _note(self, place: int | None, flag: int) -> None:
        if self._has(place):
            self._memory[_BYTES * place + flag] = 1

    def _is_noted(self, place: int | None, flag: int) -> bool:
        return self._has(place) and self._memory[_BYTES * place + flag] != 0

    def _has(self, place: int | None) -> TypeGuard[int]:
        return place is not None and 0 <= place < self._most


def _publish_writes() -> None:
    """Let other processes see what this one has written, before it reads.

    A processor may reorder the two; an atomic instruction keeps the order. A new lock each time,
    since a fork could copy one that is taken.
    """
    environment.lock().acquire()
