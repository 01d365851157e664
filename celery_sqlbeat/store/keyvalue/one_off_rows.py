"""What becomes of the rows of a one-off that is submitted, and of a run that is cancelled."""

from celery_sqlbeat.model.lifecycle import (
    CANCELLED,
    CLAIMED,
    DISPATCHED,
    RETRY,
    RUNNING,
    SCHEDULED,
    Ending,
    after_cancellation,
)
from celery_sqlbeat.model.one_offs import ONCE, ONE_OFF, Asked, Cancellation, CancelRequest, OneOff, Submitted
from celery_sqlbeat.store.keyvalue.end_rows import free, move_on
from celery_sqlbeat.store.keyvalue.rows import Row
from celery_sqlbeat.store.keyvalue.tables import JOB, KEY, RUN, STORE, after, first_fence, instant, micros
from celery_sqlbeat.store.keyvalue.units import View


def submit(view: View, one_off: OneOff, submitter: str, dispatch_seconds: float) -> Submitted:
    """Add a one-off, unless it was added before, or its key stands for another run."""
    run_id, claim_id, now, clock = one_off.run_id, one_off.claim_id, view.now, instant(view.now)
    run = view.row(RUN, run_id)
    if run is not None:
        is_its_claim = claim_id is not None and run.get("claim_id") == claim_id
        return Submitted(run_id, True, instant(run["scheduled_for"]), clock, run["fence"] if is_its_claim else 0)
    due = now if one_off.due_at is None else max(now, micros(one_off.due_at))
    if one_off.key is not None:
        key = view.row(KEY, one_off.key.text)
        if key is not None and key["ends_at"] > now:
            is_new, due_at = key["run_id"] == run_id, instant(key["due_at"])
            return Submitted(key["run_id"], is_new, due_at, clock, 0, key["task_name"], key["digest"])
        ends_at, digest = after(now, one_off.key.ttl_seconds), one_off.key.digest
        meant = {"run_id": run_id, "task_name": one_off.task_name, "digest": digest, "due_at": due, "ends_at": ends_at}
        view.add(KEY, one_off.key.text, meant)
    # The store's row is seen, and so compared: a recovery raises the fences of all that it finds.
    fence = first_fence(None, view.row(*STORE)) + (claim_id is not None)
    job: Row = {
        "one_off": 1,
        "job_name": run_id,
        **{name: getattr(one_off, name) for name in ("task_name", "args", "kwargs", "options", "policies")},
        "schedule": ONCE,
        "enabled": 1,
        "retry_at": due,
        "retry_run_id": run_id,
        "fence": fence,
        "version": 1,
        "created_at": now,
        "updated_at": now,
    }
    run = {
        "job_id": run_id,
        "job_name": run_id,
        "task_name": one_off.task_name,
        "kind": ONE_OFF,
        "scheduled_for": due,
        "attempt": 1,
        "advances": 1,
        "state": SCHEDULED,
        "fence": fence,
        "created_at": now,
    }
    if claim_id is not None:
        job |= {"locked_by": submitter, "locked_at": now, "claimed_at": now, "run_id": run_id, "claim_id": claim_id}
        job["lease_ends_at"] = after(now, dispatch_seconds)
        run |= {"state": CLAIMED, "prior_state": SCHEDULED, "claimed_by": submitter, "claimed_at": now}
        run |= {name: getattr(one_off, name) for name in ("claim_id", "lease_seconds", "max_retries", "max_runtime")}
        run["exclusive"] = 1
    view.add(JOB, run_id, job)
    view.add(RUN, run_id, run)
    return Submitted(run_id, True, instant(due), clock, fence if claim_id is not None else 0)


def cancel(view: View, request: CancelRequest) -> Cancellation | None:
    """End a run that has not begun, or write that it is to stop; None where it is not known."""
    run = view.row(RUN, request.run_id)
    if run is None:
        return None
    job = view.row(JOB, run["job_id"])
    if run.get("cancel_at") is None and _may_be_cancelled(view, job, run, request.run_id):
        ending = after_cancellation(Asked(request.by, request.reason, instant(view.now)))
        run |= {"cancel_at": view.now, "cancel_by": request.by, "cancel_reason": request.reason}
        run["reason"] = ending.reason
        if run["state"] != RUNNING:
            _end(view, job, run, request.run_id, ending)
        elif job is not None and _holds(job, run, request.run_id):
            job["asked"] = 1
    is_asked = run.get("cancel_at") is not None
    return Cancellation(run["state"], is_asked and run["state"] == CANCELLED, is_asked and run["state"] == RUNNING)


def _may_be_cancelled(view: View, job: Row | None, run: Row, run_id: str) -> bool:
    """Return whether a run goes on, or would begin if nothing happened."""
    if run["state"] == DISPATCHED:
        return run.get("started_at") is None
    if run["state"] != RETRY:
        return run["state"] in (SCHEDULED, CLAIMED, RUNNING)
    if run.get("due_at") is not None:
        return True
    if job is None or job.get("retry_at") is None or job.get("retry_run_id") != run_id:
        return False
    # Another attempt of its slot may have followed already; an extra slot may hold the job.
    return not (view.row(RUN, job.get("run_id")) or {}).get("advances")


def _end(view: View, job: Row | None, run: Row, run_id: str, ending: Ending) -> None:
    """End a run that has not begun, and let its job go on with the next slot."""
    if job is not None and _holds(job, run, run_id):
        free(view, job, run, run_id, ending)
    elif job is not None and (run["state"] != DISPATCHED or run.get("exclusive")):
        if job.get("retry_run_id") == run_id:
            move_on(job, run, view.now)
        # Of a job that another run holds, the end of that one raises it.
        job["fence"] += job.get("locked_by") is None
        view.is_news = not job.get("one_off")
    run |= {"prior_state": run["state"], "state": ending.state, "due_at": None, "finished_at": view.now}


def _holds(job: Row, run: Row, run_id: str) -> bool:
    return (job.get("run_id"), job.get("claim_id"), job["fence"]) == (run_id, run.get("claim_id"), run["fence"])
