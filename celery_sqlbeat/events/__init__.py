"""Report what a beat, a worker or a command has done, as named events with fields.

The log is written from them.

`subscribe` hands each event to a function of yours, `recorded` keeps them for a test.
docs/events.md has the list.
"""

from celery_sqlbeat.events.emitter import KINDS, Event, Kind, quoted, recorded, shown, subscribe
from celery_sqlbeat.events.kinds import *  # noqa: F403 - every event is public

__all__ = ["KINDS", "Event", "Kind", "quoted", "recorded", "shown", "subscribe"]
__all__ += list(KINDS)
