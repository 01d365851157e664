"""What becomes of a run and its job when the run ends, or its attempt. Every lease ends here."""

from typing import NamedTuple

from celery_sqlbeat.model import FINISHED
from celery_sqlbeat.model.endings import storable
from celery_sqlbeat.model.lifecycle import (
    CANCELLED,
    CLAIMED,
    DISPATCHED,
    DLQ,
    RETRY,
    RUNNING,
    SCHEDULED,
    SKIPPED,
    SUCCESS,
    TRANSITIONS,
    Ending,
    by_way_of,
)
from celery_sqlbeat.store.keyvalue.rows import Row
from celery_sqlbeat.store.keyvalue.tables import JOB, RUN, after
from celery_sqlbeat.store.keyvalue.units import View
from celery_sqlbeat.store.records import Guard, Release

_LOST = (RETRY, DLQ)  # how a run ends whose lease was lost


class Ended(NamedTuple):
    """What the end of a run has done."""

    is_released: bool
    """Whether its job is free."""
    is_closed: bool
    """Whether its outcome is written."""


def end_run(view: View, release: Release, guard: Guard) -> Ended:
    """End a run, and free its job, where the release has the right to."""
    run, job = view.row(RUN, release.run_id), view.row(JOB, release.job_id)
    if run is None:
        return Ended(is_released=False, is_closed=False)
    ending, now = storable(release.ending), view.now
    frees = job is not None and _may_release(job, run, release, guard, now)
    closes = _may_close(run, release, guard, frees, now)
    if closes and run.get("cancel_at") is not None:
        ending = ending._replace(retry_seconds=None)
    via = _way_to(run, ending, guard)
    if closes and (via, ending.state) not in TRANSITIONS:
        return Ended(is_released=False, is_closed=False)
    if job is not None and frees:
        free(view, job, run, release.run_id, ending)
    if closes:
        _close(run, ending, via, now)
        # Of a one-off a pulse tells the rest.
        if job is not None and job.get("one_off") and run.get("due_at") is not None:
            view.is_news = True
        # The job of an overlapping run is to be deleted once the last of them has ended.
        if not run.get("exclusive") and job is not None and job.get("delete_requested"):
            view.is_news = True
    return Ended(frees, closes)


def _way_to(run: Row, ending: Ending, guard: Guard) -> str:
    """Return the state from which a run gets to its end."""
    return by_way_of(ending.state, CLAIMED if guard is Guard.UNSTARTED else RUNNING) or str(run["state"])


def _may_release(job: Row, run: Row, release: Release, guard: Guard, now: int) -> bool:
    holder = (job.get("run_id"), job.get("claim_id"), job["fence"])
    if job.get("locked_by") is None or holder != (release.run_id, release.claim_id, release.fence):
        return False
    started, is_lost = job.get("started_retry"), release.ending.state in _LOST
    is_exclusive = bool(run.get("exclusive"))
    if is_exclusive and release.started_retry is not None and started != release.started_retry:
        return False
    if guard is Guard.UNSTARTED:
        return started is None
    if guard is Guard.REPLACEABLE:
        return bool(job.get("enabled")) and job.get("replace_at") is not None and job["replace_at"] <= now
    if guard is Guard.EXPIRED:
        # An overlapping run that began was dispatched: where it is lost before its beat said so,
        # its job is free.
        if not is_exclusive and is_lost:
            return True
        # Who found the lease ended before the run began cannot know that it began and ended again.
        return _has_ended(job, now) and (started is None or is_lost)
    return True


def _has_ended(row: Row, now: int) -> bool:
    return row.get("lease_ends_at") is not None and row["lease_ends_at"] <= now


def free(view: View, job: Row, run: Row, run_id: str, ending: Ending) -> None:
    """Free the job of a run that ends, and move it on by the run's cadence."""
    now = view.now
    # An overlapping run that has begun goes on by itself, whatever becomes of it: its job takes the
    # next slot.
    goes_on = not run.get("exclusive") and run["state"] == RUNNING
    retry_seconds = None if goes_on else ending.retry_seconds
    if ending.state in (SUCCESS, DISPATCHED):
        job["last_run_time"] = now
    if retry_seconds is None and job.get("started_retry") is not None:
        job["ran_until"] = now  # slots that came due until then came due while it ran
    if run.get("advances"):
        if retry_seconds is None:
            move_on(job, run, now)
        else:
            job |= {"retry_at": after(now, retry_seconds), "retry_run_id": run_id}
    job |= dict.fromkeys(_OF_A_CLAIM)
    job["fence"] += 1
    view.is_news = _is_unforeseen(job, now)


def move_on(job: Row, run: Row, now: int) -> None:
    """Let a job wait for the slot after that of a run, by the run's cadence."""
    job |= dict.fromkeys(("retry_at", "retry_run_id"))
    # Another next run than the claim saw is an operator's, and wins.
    if job.get("next_run_time") == run.get("seen_next_run_time"):
        job["next_run_time"] = _next_slot(run, now)
        if job["next_run_time"] is None:
            job |= {"enabled": 0, "disabled_reason": FINISHED}


_OF_A_CLAIM = (
    "locked_by",
    "locked_at",
    "claimed_at",
    "lease_ends_at",
    "published_at",
    "started_retry",
    "republishes",
    "run_id",
    "claim_id",
    "replace_at",
    "asked",
)


def _next_slot(run: Row, now: int) -> int | None:
    """Return the slot after this one: a cadence may count from the end of the run."""
    if run.get("delay_seconds") is None:
        return run.get("planned_at")
    return after(max(now, run["scheduled_for"]), run["delay_seconds"])


def _is_unforeseen(job: Row, now: int) -> bool:
    """Return whether a free job is due at another instant than its claim planned, or due already.

    Or to be deleted now that it is free. Then the other beats must be told.
    """
    if job.get("one_off"):
        return False
    next_run = job.get("next_run_time")
    is_foreseen = job.get("retry_at") is None and next_run is not None and next_run == job.get("planned_at")
    return not is_foreseen or next_run is None or next_run <= now or bool(job.get("delete_requested"))


def _may_close(run: Row, release: Release, guard: Guard, is_released: bool, now: int) -> bool:
    """Return whether the outcome of a run may be written."""
    state, ending = run["state"], release.ending.state
    is_exclusive = bool(run.get("exclusive"))
    if (run.get("claim_id"), run["fence"]) != (release.claim_id, release.fence):
        return False
    if release.started_retry is not None and run.get("started_retry") != release.started_retry:
        return False
    goes_on = not is_exclusive and state == RUNNING
    if not (is_released or goes_on):
        return False
    is_beats = guard in (Guard.UNSTARTED, Guard.EXPIRED)
    if state == CLAIMED:
        # What can never be published: only the beat that holds the claim knows that.
        return ending in (SCHEDULED, DISPATCHED, SKIPPED, CANCELLED) or (guard is Guard.UNSTARTED and ending in _LOST)
    # Only its own worker may hand a run over that it has begun.
    if state != RUNNING or (ending == DISPATCHED and is_beats):
        return False
    # A beat ends an overlapping run that has begun only where that run's own lease has ended.
    return is_exclusive or not is_beats or (guard is Guard.EXPIRED and ending in _LOST and _has_ended(run, now))


def _close(run: Row, ending: Ending, via: str, now: int) -> None:
    """Write how a run ended; what somebody has asked to cancel ends as that."""
    asked = run["reason"] if run.get("cancel_at") is not None else None
    goes_on = not run.get("exclusive") and run["state"] == RUNNING
    waits = ending.retry_seconds is not None and (not run.get("advances") or goes_on)
    run |= {
        "state": ending.state,
        "prior_state": via,
        "reason": ending.reason,
        "finished_at": None if ending.state == SCHEDULED else now,
        "due_at": after(now, ending.retry_seconds or 0.0) if waits else None,
        "failures": run.get("failures", 0) + ending.failures,
        "lost_leases": run.get("lost_leases", 0) + ending.lost_leases,
        "held_by": None,
        "lease_ends_at": None,
        "error": ending.error,
        "traceback": ending.traceback,
    }
    if asked is not None:
        run |= {"state": CANCELLED, "reason": asked, "finished_at": now}
    if ending.state == DISPATCHED and run.get("published_at") is None:
        run["published_at"] = now
    if ending.state == DISPATCHED or goes_on:
        run["advances"] = 0
