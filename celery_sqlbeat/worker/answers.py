"""What a worker learns when it asks whether the run of a message may begin."""

from typing import NamedTuple

from celery_sqlbeat.worker.holding import Holding


class Begun(NamedTuple):
    """The run holds its lease: hand the task to the pool, if `holding.take()` still says so."""

    holding: Holding


class Stale(NamedTuple):
    """Stale, a duplicate, or ended before it began: acknowledge the message and drop it; the body must not run."""

    reason: str = "stale"
    ends: bool = False
    """Whether its slot has ended with that, or has no row any more: nobody else will speak of it."""
    expired: bool = False
    """Whether a beat has ended its slot because the message was too old: Celery says so of its task."""


class Away(NamedTuple):
    """It could not be asked, within the time that a message may wait: back to the broker with it, after a delay."""

    reason: str


class Foreign(NamedTuple):
    """The message is another store's or namespace's: back to the broker with it, after a delay."""

    reason: str


Answer = Begun | Stale | Away | Foreign
