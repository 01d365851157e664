"""When a trouble that lasts is told again: a beat tries every few seconds, and a log is read by people."""

import time
from collections.abc import Callable

_FIRST_SILENCE, _LONGEST_SILENCE = 0.5, 60.0  # seconds


class Trouble:
    """What keeps a beat from its work, from the first failure until one try succeeds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._text: str | None = None
        self._since = self._again_at = 0.0

    def is_to_be_told(self, text: str) -> bool:
        """Whether this belongs into the log now: it is new, or has lasted as long again as when it was last told."""
        now = self._clock()
        if self._text is None:
            self._since = now
        if text == self._text and now < self._again_at:
            return False
        self._text = text
        self._again_at = now + min(_LONGEST_SILENCE, max(_FIRST_SILENCE, now - self._since))
        return True

    def is_over(self) -> None:
        """Whatever comes next is another trouble."""
        self._text = None
