"""What a process takes from the machine it runs on: clocks and chance. A simulation brings a machine of its own."""

import random
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import NamedTuple

from celery_sqlbeat.ids import Ids


def wall_clock() -> datetime:
    """The clock of this host; nothing is decided by it."""
    return datetime.now(timezone.utc)


class Machine(NamedTuple):
    """Where a process runs."""

    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], datetime] = wall_clock
    random: Callable[[], float] = random.random
    ids: Ids = Ids()  # without state: one for all


THIS_MACHINE = Machine()
