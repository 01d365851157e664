"""What becomes of a run and its job when a worker asks to begin the run."""

from celery_sqlbeat.model import RefusedStart, StartedRun, StartRequest
from celery_sqlbeat.model.lifecycle import (
    CANCELLED,
    CLAIMED,
    DISPATCHED,
    JOB_DELETED,
    NEVER_STARTED,
    OVERLAP,
    RUNNING,
    SKIPPED,
)
from celery_sqlbeat.store.keyvalue.rows import Row
from celery_sqlbeat.store.keyvalue.tables import JOB, RUN, after, record_of
from celery_sqlbeat.store.keyvalue.units import View


def start_run(view: View, requests: list[StartRequest], worker: str) -> StartedRun | RefusedStart | None:
    """Begin a run for one of these requests of the same run, or say why none may.

    None: the run is not known.
    """
    answer: RefusedStart | None = None
    for request in requests:
        run = view.row(RUN, request.run_id)
        if run is None:
            return None
        job = view.row(JOB, run["job_id"])
        if job is not None and _may_take_lease(job, run, request):
            _take_lease(job, run, request, worker, view.now)
            return _begin(run, request, worker, view.now, job)
        if _may_overlap(job, run, request):
            return _begin(run, request, worker, view.now, None)
    for request in requests:
        run = view.row(RUN, request.run_id) or {}
        refuse(view.row(JOB, run["job_id"]), run, request, view.now)
        answer = _refused(run, request)
        if answer.is_its_claim:
            break
    return answer


def _may_take_lease(job: Row, run: Row, request: StartRequest) -> bool:
    """Return whether a run may begin under the lease of its job."""
    state, fence = run["state"], run["fence"]
    if run.get("claim_id") != request.claim_id or not run.get("exclusive"):
        return False
    # A late start of a dispatched run raised the run's fence above that of its message.
    if fence != request.fence and not (fence > request.fence and run.get("prior_state") == DISPATCHED):
        return False
    if state == DISPATCHED:
        # Not where an unlocking by hand left a run behind: the row must not forget it.
        is_free = job.get("locked_by") is None and job.get("run_id") is None and not job.get("delete_requested")
        return is_free and run.get("reason") == NEVER_STARTED
    if state not in (CLAIMED, RUNNING) or job.get("locked_by") is None:
        return False
    if (job.get("run_id"), job.get("claim_id"), job["fence"]) != (request.run_id, request.claim_id, fence):
        return False
    # One time only: a later retry by Celery itself, or the same question again before such a retry.
    started = job.get("started_retry")
    if started is None:
        return True
    if started < request.celery_retries:
        return run.get("cancel_at") is None
    return bool(started == request.celery_retries and run.get("start_id") == request.start_id)


def _take_lease(job: Row, run: Row, request: StartRequest, worker: str, now: int) -> None:
    job |= {
        "locked_by": worker,
        "locked_at": now,
        "lease_ends_at": after(now, run["lease_seconds"]),
        "claimed_at": now if job.get("claimed_at") is None else job["claimed_at"],
        "started_retry": request.celery_retries,
        "run_id": request.run_id,
        "claim_id": request.claim_id,
        "fence": job["fence"] + (run["state"] == DISPATCHED),
    }


def _may_overlap(job: Row | None, run: Row, request: StartRequest) -> bool:
    """Return whether a run may begin that needs no lease of its job's.

    Such is one that may overlap others, and one that was fired and forgotten: its job has gone on,
    and another run may hold it.
    """
    state = run["state"]
    if (run.get("claim_id"), run["fence"]) != (request.claim_id, request.fence):
        return False
    if state == RUNNING:
        started: int = run["started_retry"]
        is_later = started < request.celery_retries and run.get("cancel_at") is None
        return not run.get("exclusive") and (is_later or run.get("start_id") == request.start_id)
    if job is None or job.get("delete_requested"):
        return False
    if state == CLAIMED:
        return not run.get("exclusive")
    # After its last deadline a leased slot needs its lease all the same.
    is_late = bool(run.get("exclusive")) and run.get("reason") == NEVER_STARTED
    return state == DISPATCHED and run.get("started_at") is None and not is_late


def _begin(run: Row, request: StartRequest, worker: str, now: int, job: Row | None) -> StartedRun:
    """Write that a run has begun, under the lease of this job or under one of its own."""
    if run["state"] != RUNNING:
        run["prior_state"] = run["state"]
    published = (run.get("published_at"), None if job is None else job.get("published_at"), now)
    run |= {
        "state": RUNNING,
        "fence": run["fence"] if job is None else job["fence"],
        # What begins was published, even where its beat has not said so yet.
        "published_at": next(at for at in published if at is not None),
        "started_by": worker,
        "start_id": request.start_id,
        "started_at": now if run.get("started_at") is None else run["started_at"],
        "started_retry": request.celery_retries,
        "exclusive": int(job is not None),
        "held_by": worker if job is None else None,
        "lease_ends_at": after(now, run["lease_seconds"]) if job is None else None,
    }
    return record_of(StartedRun, run, {"run_id": request.run_id, "celery_retries": request.celery_retries})


def refuse(job: Row | None, run: Row, request: StartRequest, now: int) -> None:
    """End what was sent and cannot begin any more."""
    state, is_exclusive = run["state"], bool(run.get("exclusive"))
    if (run.get("claim_id"), run["fence"]) != (request.claim_id, request.fence) or run.get("started_at") is not None:
        return
    if state != DISPATCHED and (state != CLAIMED or is_exclusive):
        return
    is_deleted = job is None or bool(job.get("delete_requested"))
    is_held = job is not None and (job.get("locked_by") is not None or job.get("run_id") is not None)
    if is_deleted or (is_exclusive and run.get("reason") == NEVER_STARTED and is_held):
        run |= {
            "state": CANCELLED if is_deleted else SKIPPED,
            "prior_state": state,
            "reason": JOB_DELETED if is_deleted else OVERLAP,
            "finished_at": now,
        }


def _refused(run: Row, request: StartRequest) -> RefusedStart:
    has_started = run.get("started_at") is not None
    is_fence = run["fence"] == request.fence or (run["fence"] > request.fence and has_started)
    is_its_claim = run.get("claim_id") == request.claim_id and is_fence
    return RefusedStart(request.run_id, run["state"], run.get("reason"), int(is_its_claim), int(has_started))
