"""How often a worker extends its leases, when it stops a task, and how long a message waits for the database. Pure."""

from typing import NamedTuple

from celery_sqlbeat.config import Settings, stop_timeout

ASK_SECONDS = 15.0  # a message that waits takes a slot of the pool from messages that need no database
AHEAD_SECONDS = 1.0  # a lease that its task does not use within this time is better used by another worker
MOST_ASKS = 10_000  # messages that wait; a pool has far fewer slots, so more of them are somebody's mistake
GATHER_SLOTS = 0.006  # a start with its slot of the pool in hand, where they come in crowds
GATHER_PASSING = 0.008  # a start that could have a slot, but keeps none; its task begins later by this
GATHER_STARTS = 0.020  # a start that was asked ahead; with its statement well within the time until its slot comes
GATHER_OUTCOMES = 0.050  # an outcome that nobody waits for; the job's next slot is later than that by far
GATHER_LATE = 0.006  # an outcome that a late acknowledgement waits for, and with it the next message
ENOUGH_STARTS = 16  # rows that gather; more of them would come to the pool at one moment, and wait there
ENOUGH_OUTCOMES = 32  # rows that gather; beyond that a statement costs about as much per row
BATCH_SIZE = 500  # rows of a start or of an outcome: SQL Server escalates locks from 5,000 on, and one run has several


class Timing(NamedTuple):
    """The durations that a keeper goes by, in seconds."""

    heartbeat_interval: float = 30.0
    heartbeat_failures: int = 3
    lease_seconds: float = 120.0
    """The usual lease: after this an unanswered start is left to those who reclaim."""
    ask_seconds: float = ASK_SECONDS
    ahead_seconds: float = AHEAD_SECONDS
    most_asks: int = MOST_ASKS
    batch_size: int = BATCH_SIZE
    gather_slots: float = GATHER_SLOTS
    gather_passing: float = GATHER_PASSING
    gather_starts: float = GATHER_STARTS
    gather_outcomes: float = GATHER_OUTCOMES
    gather_late: float = GATHER_LATE
    enough_starts: int = ENOUGH_STARTS
    enough_outcomes: int = ENOUGH_OUTCOMES

    @classmethod
    def of(cls, settings: Settings) -> "Timing":
        """The timing that these settings ask for."""
        return cls(settings.heartbeat_interval, settings.heartbeat_failures, settings.lock_timeout)

    def interval(self, lease_seconds: float) -> float:
        """How often a lease of this length is extended: a short one in proportion."""
        return min(self.heartbeat_interval, lease_seconds / (self.heartbeat_failures + 1))

    def stop_after(self, lease_seconds: float) -> float:
        """How long after the last heartbeat that succeeded was sent the task is stopped.

        A heartbeat has failed when it is not done by the time of the next one; after so many in a row the run is
        abandoned. In any case the task is stopped early enough to be gone when the lease ends.
        """
        abandoned = self.interval(lease_seconds) * (self.heartbeat_failures + 1)
        return min(abandoned, lease_seconds - stop_timeout(lease_seconds))
