"""Whether to wait a few milliseconds for more before a statement goes out: one for many costs little more than for one.

Only for what nobody waits for with a slot of the pool in hand. Pure.
"""

_FEWEST = 3  # rows that must be expected within the time; fewer are not worth a delay
_LONG = 0.05  # seconds; how much longer a gap is says nothing
_LATEST = 0.1  # how much the last gap between two arrivals counts


class Gathering:
    """Follows how quickly rows come, how many of the next batch are there, and since when."""

    def __init__(self, enough: int) -> None:
        """`enough`: so many rows wait for no more."""
        self._enough = enough
        self._gap = _LONG  # seconds between two arrivals, smoothed
        self._last_at = 0.0
        self._since = 0.0
        self._count = 0

    def came(self, count: int, now: float) -> None:
        """So many rows have come since the last time."""
        gap = min(_LONG, (now - self._last_at) / count)
        self._gap += (1.0 - (1.0 - _LATEST) ** count) * (gap - self._gap)
        self._last_at = now
        if not self._count:
            self._since = now
        self._count += count

    def seconds_left(self, now: float, longest: float) -> float:
        """How long to wait for more, at most so long since the first; 0 where the batch should go now."""
        if not 0 < self._count < self._enough or max(self._gap, now - self._last_at) * _FEWEST > longest:
            return 0.0
        return max(0.0, self._since + longest - now)

    def sent(self) -> None:
        """The batch goes out."""
        self._count = 0
