"""Messages that wait beside the pool until the database is back: with a slot each they would keep others from theirs.

One of them asks meanwhile, so that its answer is noticed; leases for all would come at once, and slots would not.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from celery_sqlbeat.worker.answers import Away
from celery_sqlbeat.worker.gate import Asked, Gate
from celery_sqlbeat.worker.timing import ASK_SECONDS

_LOOK_SECONDS = 0.1  # to look costs nothing


class Held(NamedTuple):
    """One that does not ask."""

    again: Callable[[], None]
    give_up_at: float


class Lull:
    """The messages of one worker while its database is known to be away. All of it where the consumer is served."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._scout: Asked | None = None
        """Who asks for all of them."""
        self._held: dict[Asked, Held] = {}
        self._is_looking = False

    def holds(self, asked: Asked, again: Callable[[], None]) -> bool:
        """Whether the message waits here, without a slot; `again` admits it anew. If not, it is to ask."""
        if not self._gate.is_away:
            return False
        if not self._has_scout():
            self._scout = asked
            return False
        self._gate.waits_on(asked)
        self._held[asked] = Held(again, time.monotonic() + ASK_SECONDS)
        self._look_soon()
        return True

    def leave(self) -> None:
        """The connection has ended, and each of them is gone."""
        self._scout = None
        self._held.clear()
        self._is_looking = False  # the event loop has forgotten what was to be called

    def _has_scout(self) -> bool:
        return self._scout is not None and self._gate.is_open(self._scout)

    def _look_soon(self) -> None:
        if self._held and not self._is_looking:
            self._is_looking = True
            self._gate.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._is_looking = False
        now = time.monotonic()
        for asked, one in list(self._held.items()):
            goes_on = not self._gate.is_away or not self._has_scout()
            if goes_on or now >= one.give_up_at or not self._gate.is_open(asked):
                del self._held[asked]
            if not self._gate.is_open(asked):
                continue
            if goes_on:
                self._gate.goes_on(asked)
                one.again()
            elif now >= one.give_up_at:
                self._gate.refuse(asked, Away("the database could not be asked"))
        self._look_soon()
