"""The states of a run, the legal ways between them, and what follows when a run or its lease ends.

Pure: no clock, no driver. The database holds the same table as a CHECK constraint.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from celery_sqlbeat.model import HeldLease, RefusedStart
from celery_sqlbeat.model.one_offs import Asked

SCHEDULED = "scheduled"
CLAIMED = "claimed"
RUNNING = "running"
RETRY = "retry"
FAILED = "failed"
SUCCESS = "success"
DLQ = "dlq"
DISPATCHED = "dispatched"
SKIPPED = "skipped"
CANCELLED = "cancelled"

OPEN = frozenset({SCHEDULED, CLAIMED, RUNNING, RETRY, FAILED})
OUTCOMES = frozenset({SUCCESS, DLQ, DISPATCHED, SKIPPED, CANCELLED})
STATES = OPEN | OUTCOMES

TRANSITIONS: frozenset[tuple[str, str]] = frozenset(
    {
        (SCHEDULED, CLAIMED),
        (CLAIMED, RUNNING),
        (CLAIMED, SCHEDULED),
        (CLAIMED, DISPATCHED),
        (CLAIMED, FAILED),
        (RUNNING, SUCCESS),
        (RUNNING, FAILED),
        (RUNNING, RETRY),
        (RUNNING, SCHEDULED),
        (FAILED, DLQ),
        (FAILED, RETRY),
        (FAILED, SCHEDULED),
        (RETRY, SCHEDULED),
        (DLQ, SCHEDULED),
        (DISPATCHED, RUNNING),
        (DISPATCHED, SUCCESS),
        (DISPATCHED, FAILED),
        (DISPATCHED, SKIPPED),
        (DISPATCHED, CANCELLED),
        *((state, end) for state in OPEN for end in (SKIPPED, CANCELLED)),
    }
)

MAX_REPUBLISHES = 3
LONGEST_QUEUED_SECONDS = 3600.0  # doubling stops at an hour
NOT_RETRIED = "not retried"  # its error, or its retry strategy, sends it to the dead letters at once
CANNOT_BE_PUBLISHED = "cannot be published"
NEVER_STARTED = "never started"
OVERLAP = "overlap"
JOB_DELETED = "job deleted"
REPLACED_REASON = "replaced"  # of a run that made room for the next slot of its job
UNKNOWN_TASK = "unknown task"
LEFT_TO_OTHERS = "left to a worker without celery-sqlbeat"
LEFT_TO_STRATEGY = "left to the strategy of its task"
EXPIRED = "expired"
LONGEST_REASON = 200  # characters, as wide as the column


def by_way_of(after: str, before: str = RUNNING) -> str | None:
    """Return the state on the way, where a run cannot get to this one directly.

    What its worker can hear no more of is let go: back to its claim, as if the beat had fired and
    forgotten it.
    """
    way = next((way for way in (before, FAILED, CLAIMED) if (way, after) in TRANSITIONS), before)
    return None if way == before else way


class Ending(NamedTuple):
    """How a run ends, or leaves the hands that held it.

    `retry_seconds` is the wait before the slot is due again, `None` where the slot is over. The two
    counters are added to those of the slot.
    """

    state: str
    reason: str | None = None
    retry_seconds: float | None = None
    failures: int = 0
    lost_leases: int = 0
    error: str | None = None
    traceback: str | None = None


class Waits(Protocol):
    """Says how long to wait before a failed slot is tried again."""

    def seconds(self, failures: int, random: Callable[[], float]) -> float | None:
        """Return the delay; None where the slot is not to be tried again."""


class Backoff(NamedTuple):
    """How long to wait before a failed slot is tried again."""

    base: float = 2.0
    factor: float = 2.0
    longest: float = 600.0

    def seconds(self, failures: int, random: Callable[[], float]) -> float:
        """Return a delay with full jitter, from zero to the exponential bound."""
        try:
            bound = self.base * self.factor ** (failures - 1)
        except OverflowError:
            bound = self.longest
        return random() * min(bound, self.longest)


def after_success(reason: str | None = None, error: str | None = None) -> Ending:
    """End the slot; the job goes on by its cadence.

    `error`: what went wrong after the body had returned.
    """
    return Ending(SUCCESS, reason, error=error)


def tried_again_in(failures_before: int, max_retries: int, backoff: Waits, random: Callable[[], float]) -> float | None:
    """Return the seconds until another attempt if this one fails; None without retries left."""
    failures = failures_before + 1
    return backoff.seconds(failures, random) if failures <= max_retries else None


def after_failure(
    failures_before: int,
    max_retries: int,
    backoff: Waits,
    random: Callable[[], float],
    error: str | None = None,
    traceback: str | None = None,
) -> Ending:
    """Another attempt while retries are left and the backoff allows one, then the dead letters."""
    seconds = tried_again_in(failures_before, max_retries, backoff, random)
    if seconds is None:
        reason = NOT_RETRIED if failures_before < max_retries else "retries exhausted"
        return Ending(DLQ, reason, None, 1, 0, error, traceback)
    return Ending(RETRY, "failed", seconds, 1, 0, error, traceback)


def after_refusal(
    failures_before: int,
    max_retries: int,
    backoff: Waits,
    random: Callable[[], float],
    error: str,
    traceback: str | None = None,
) -> Ending:
    """End the attempt as after a failure: its message may be repaired before the next one."""
    return after_failure(failures_before, max_retries, backoff, random, error, traceback)._replace(
        reason=CANNOT_BE_PUBLISHED
    )


def after_lost_lease(
    lost_before: int, max_lost_leases: int, reason: str = "lease lost", counted: bool = True
) -> Ending:
    """Start a new attempt at once; a slot that loses lease after lease ends in the dead letters.

    Not counted where the database was away or the worker stopped in order: the slot is not to
    blame.
    """
    if not counted:
        return Ending(RETRY, reason, 0.0)
    if lost_before + 1 > max_lost_leases:
        return Ending(DLQ, "too many lost leases", None, 0, 1, f"{reason} {lost_before + 1} times")
    return Ending(RETRY, reason, 0.0, 0, 1)


def after_cancellation(asked: Asked) -> Ending:
    """End the slot as cancelled; the reason says who asked, when and why."""
    why = f": {asked.reason}" if asked.reason else ""
    return Ending(CANCELLED, f"cancelled by {asked.by} at {asked.at:%Y-%m-%d %H:%M:%S} UTC{why}"[:LONGEST_REASON])


def was_cancelled(run: RefusedStart | None) -> bool:
    """Return whether a message may not begin since somebody has cancelled its run."""
    return (
        run is not None
        and bool(run.is_its_claim)
        and run.state == CANCELLED
        and run.reason not in (JOB_DELETED, REPLACED_REASON)
    )


def released(reason: str, seconds: float = 0.0) -> Ending:
    """Make the same attempt due again: it was surely not published, or has not begun."""
    return Ending(SCHEDULED, reason[:LONGEST_REASON], seconds)


def released_unknown(seconds: float) -> Ending:
    """Release the attempt, as another worker may know its task."""
    return released(UNKNOWN_TASK, seconds)


def queued_seconds(lease_seconds: float, republishes: int) -> float:
    """Return how long a published slot may wait for its start.

    The time doubles with every republish, up to an hour.
    """
    return max(lease_seconds, min(lease_seconds * 2.0**republishes, LONGEST_QUEUED_SECONDS))


class ExpiredLease(NamedTuple):
    """What must be known of a run whose lease ended, to say what follows."""

    state: str
    published: bool
    started: bool
    republishes: int
    lease_seconds: float
    lost_leases: int

    @classmethod
    def of(cls, lease: HeldLease) -> "ExpiredLease":
        """Read a lease that is past its end."""
        is_published, has_started = lease.published_at is not None, bool(lease.started)
        return cls(lease.state, is_published, has_started, lease.republishes, lease.lease_seconds, lease.lost_leases)


class Republish(NamedTuple):
    """The slot keeps waiting until a later deadline; with `publish`, for a new copy as well."""

    queued_seconds: float
    publish: bool
    withheld: str | None = None
    """Why it is not published, where the consumers of the queue forbid it."""


def after_ended_lease(
    run: ExpiredLease, max_lost_leases: int, can_republish: bool, expired: bool = False, counted: bool = True
) -> Ending | Republish:
    """Decide what follows an ended lease.

    The run is lost, released, republished, or left to the broker as `dispatched`.

    `can_republish`: a live worker with the extension consumes the queue, and no other worker does.
    """
    if run.started:
        return after_lost_lease(run.lost_leases, max_lost_leases, counted=counted)
    if run.state == RUNNING:  # it overlaps others under a lease of its own: only its job is to be freed
        return Ending(DISPATCHED)
    if not run.published:
        return released("not published in time")
    if expired:
        return Ending(SKIPPED, EXPIRED)
    if run.republishes >= MAX_REPUBLISHES:
        return Ending(DISPATCHED, NEVER_STARTED)
    return Republish(queued_seconds(run.lease_seconds, run.republishes + 1), can_republish)


def left_to_strategy() -> Ending:
    """End the slot of a message that the task's own strategy took; no outcome is reported."""
    return Ending(DISPATCHED, LEFT_TO_STRATEGY)


def left_to_others() -> Ending:
    """End the slot of a message to a worker without the extension; no outcome is reported.

    To wait on would keep the job from its next slots for as long as a fleet is upgraded, or rolled
    back.
    """
    return Ending(DISPATCHED, LEFT_TO_OTHERS)


def has_expired(run: RefusedStart | None) -> bool:
    """Return whether the slot has ended because its message was too old to begin."""
    return run is not None and bool(run.is_its_claim) and (run.state, run.reason) == (SKIPPED, EXPIRED)


def why_refused(run: RefusedStart | None) -> str | None:
    """Return why a message may not begin, in words; None where nothing forbids it any more."""
    if run is None:
        return "stale: its run is not known here, or its history is gone"
    if not run.is_its_claim:
        return "stale: its claim is no longer valid"
    if was_cancelled(run):
        return f"its run was cancelled ({run.reason})"
    if run.has_started:
        return f"a duplicate: its run has started already, and is {run.state}"
    if (run.state, run.reason) == (SKIPPED, OVERLAP):
        return "another run holds its job: the slot ends as skipped (overlap)"
    if (run.state, run.reason) == (CANCELLED, JOB_DELETED):
        return "its job was deleted: the slot ends as cancelled"
    if run.state in (CLAIMED, DISPATCHED):
        return None
    return f"stale: its run is {run.state}" + (f" ({run.reason})" if run.reason else "")
