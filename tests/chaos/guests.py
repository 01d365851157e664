"""A worker without the extension that joins a queue of leasing workers, and leaves it again."""

import contextlib
import random
import signal
from collections.abc import Callable

from tests.support.beats import Beat

Later = Callable[[float, Callable[[], None]], None]
"""Do something after so many seconds."""

_LONGEST_FREEZE = 12.0  # seconds; two leases


class Guest:
    """Solo: inside its task it answers nobody.

    It is never told to stop, for it would go on without consuming.
    """

    def __init__(self, start: Callable[[], Beat]) -> None:
        self._start = start
        self._running: Beat | None = None

    def comes(self) -> None:
        """Start it."""
        self._running = self._start()

    def goes(self) -> None:
        """Kill it with what it does, where it is there."""
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                self._running.signal(signal.SIGKILL)
            self._running.process.wait(60)
        self._running = None

    def choices(self, random: random.Random, later: Later) -> list[tuple[str, Callable[[], object]]]:
        """Return what may befall it next."""
        if self._running is None:
            return [("plain worker comes", self.comes)] * 2
        return [("plain worker killed", self.goes), ("plain worker frozen", lambda: self._freeze(random, later))]

    def _freeze(self, random: random.Random, later: Later) -> None:
        process = self._running
        assert process is not None

        def signal_it(how: int) -> None:
            with contextlib.suppress(ProcessLookupError):
                process.signal(how)

        signal_it(signal.SIGSTOP)
        later(random.uniform(0.5, _LONGEST_FREEZE), lambda: signal_it(signal.SIGCONT))
