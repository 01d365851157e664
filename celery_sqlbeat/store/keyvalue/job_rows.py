"""Decide what becomes of a job that somebody writes: one function for each kind of write.

Each changes rows of a view, and returns whether the job is as the write expects.
"""

from celery_sqlbeat.model import (
    FINISHED,
    MANUAL,
    PAUSED,
    AddJob,
    DeleteIdleJob,
    DeleteJob,
    JobChange,
    JobDraft,
    JobUpkeep,
    NewRun,
    PauseJob,
    QuarantineJob,
    ResumeJob,
    SealJob,
    UpdateJob,
)
from celery_sqlbeat.model.lifecycle import CANCELLED, CLAIMED, DLQ, JOB_DELETED, RETRY, RUNNING, SCHEDULED
from celery_sqlbeat.model.one_offs import ONE_OFF
from celery_sqlbeat.store.keyvalue.claim_rows import gap_row, is_free_at
from celery_sqlbeat.store.keyvalue.rows import Row, Scan
from celery_sqlbeat.store.keyvalue.tables import (
    JOB,
    NAME,
    RUN,
    STORE,
    first_fence,
    held_index,
    kept,
    micros,
    runs_index,
    waiting_index,
)
from celery_sqlbeat.store.keyvalue.units import View

DELETED = "deleted"  # why a job is disabled that goes as soon as its runs have ended
REPLAYED = "replayed"  # the reason of a dead letter that another attempt follows
_OPEN = (SCHEDULED, CLAIMED, RUNNING)
_CANCELLABLE = (SCHEDULED, RETRY, CLAIMED, RUNNING)


def add(view: View, write: AddJob, job_id: str) -> bool:
    """Add a job; not where there is one of this name."""
    row = {
        **_definition(write.draft),
        "enabled": int(write.draft.enabled),
        "disabled_reason": write.disabled_reason,
        "next_run_time": kept(write.draft.next_run_time),
        "last_run_time": kept(write.last_run_time),
    }
    return put_new(view, write.job_name, job_id, row)


def put_new(view: View, job_name: str, job_id: str, row: Row) -> bool:
    """Add a job; its fence goes on where that of an earlier one of its name ended."""
    name = view.row(NAME, job_name)
    if name is not None and name.get("job_id"):
        return False
    # The store's row is seen, and so compared: a name is forgotten as the floor is raised.
    fence = first_fence(name, view.row(*STORE))
    born = {"job_name": job_name, "fence": fence, "version": 1, "created_at": view.now, "updated_at": view.now}
    view.add(JOB, job_id, {**row, **born})
    view.add(NAME, job_name, {"job_id": job_id})
    view.is_news = True
    return True


def change(view: View, write: JobChange) -> bool:
    """Change, pause, resume or delete a job."""
    job_id = str((view.row(NAME, write.job_name) or {}).get("job_id", ""))
    if isinstance(write, SealJob):
        job_id = job_id or write.job_name  # of a one-off, which has no other name
    row = view.row(JOB, job_id) if job_id else None
    if row is None or write.version not in (None, row["version"]):
        return False
    if isinstance(write, UpdateJob | ResumeJob) and write.fence not in (None, row["fence"]):
        return False
    if isinstance(write, PauseJob | ResumeJob) and bool(row.get("enabled")) != isinstance(write, PauseJob):
        return False
    view.is_news = True
    # A job is deleted in a further step: a run of it that begins beside it, now, writes no row that
    # is compared here, but it does not begin once the deletion is asked for.
    row.update(_changes(write, row), version=row["version"] + 1, updated_at=view.now)
    gap = write.gap if isinstance(write, UpdateJob | ResumeJob) else None
    if gap is not None:
        view.add(RUN, gap.run_id, gap_row(gap, row, view.now))
        row["newest_slot"] = max(row.get("newest_slot") or 0, micros(gap.last))
    return True


def keep_up(view: View, write: JobUpkeep) -> bool:
    """Repair a job, set it aside, or delete it now that it is free."""
    row = view.row(JOB, write.job_id)
    if row is None:
        return False
    if isinstance(write, DeleteIdleJob):
        if not row.get("delete_requested") or not is_free(view, write.job_id, row):
            return False
        delete(view, write.job_id, row)
    elif not is_free_at(row, write.fence, write.version):
        return False
    elif isinstance(write, QuarantineJob):
        row["quarantine"] = write.reason
    else:
        row.update(next_run_time=kept(write.next_run_time), retry_at=kept(write.retry_at), quarantine=None)
    return True


def is_free(view: View, job_id: str, row: Row) -> bool:
    """Return whether no run holds a job, or goes on by itself, overlapping others."""
    return row.get("locked_by") is None and not view.scan(Scan(held_index(job_id), limit=1)).ids


def delete(view: View, job_id: str, row: Row) -> None:
    """Delete a job; nobody would take up what waits for its turn, so that is cancelled."""
    waiting = {run_id for run_id, _ in view.scan(Scan(waiting_index(job_id))).ids}
    for run_id in sorted(waiting | {run_id for run_id in (row.get("run_id"), row.get("retry_run_id")) if run_id}):
        run = view.row(RUN, run_id)
        if run is not None and run["state"] in _CANCELLABLE:
            run.update(prior_state=run["state"], state=CANCELLED, reason=JOB_DELETED, due_at=None, finished_at=view.now)
    view.row(NAME, row["job_name"])
    view.add(NAME, row["job_name"], {"fence": row["fence"], "deleted_at": view.now})
    view.remove(JOB, job_id)


def enqueue(view: View, run: NewRun) -> str | None:
    """Add an attempt to the outbox; None where its job is gone or about to go."""
    job = view.row(JOB, run.job_id)
    if job is None or job.get("delete_requested"):
        return None
    if run.letter is not None and run.letter.kind == ONE_OFF:
        return _reopen(view, run.letter.run_id)
    # No two extra slots of a job are at one instant; and whoever adds a run changes the row of its
    # job, so that those who number attempts notice it.
    slot = max(view.now, job.get("newest_extra", 0) + 1)
    born = {"kind": MANUAL, "scheduled_for": slot, "attempt": 1}
    if run.letter is not None:
        letter = view.row(RUN, run.letter.run_id)
        if letter is None or not _may_be_replayed(view, letter):
            return None
        letter["reason"] = REPLAYED
        born = {"attempt": letter["attempt"] + 1, "prior_state": DLQ}
        born |= {field: letter[field] for field in ("kind", "scheduled_for")}
    job["newest_extra"] = slot
    born |= {"job_id": run.job_id, "job_name": job["job_name"], "fence": job["fence"], "state": SCHEDULED}
    view.add(RUN, run.run_id, {**born, "due_at": view.now, "created_at": view.now})
    view.is_news = True
    return run.run_id


def _reopen(view: View, run_id: str) -> str | None:
    """Give a dead one-off another attempt; it keeps its id."""
    run = view.row(RUN, run_id)
    if run is None or run["state"] != DLQ:
        return None
    none = ("reason", "failures", "lost_leases", "claim_id", "finished_at", "error", "traceback")
    run |= {"state": SCHEDULED, "prior_state": DLQ, "attempt": run["attempt"] + 1, "advances": 0}
    run |= {**dict.fromkeys(none), "due_at": view.now, "results_ended_at": view.now}
    view.is_news = True
    return run_id


def _may_be_replayed(view: View, letter: Row) -> bool:
    """Return whether a dead letter is the last attempt of its slot, and none of them is open."""
    if letter["state"] != DLQ or letter.get("reason") == REPLAYED:
        return False
    slot = letter["scheduled_for"]
    ids = [run_id for run_id, _ in view.scan(Scan(runs_index(letter["job_id"]), low=slot, high=slot)).ids]
    attempts = [row for run_id in ids if (row := view.row(RUN, run_id)) and row["kind"] == letter["kind"]]
    return not any(
        row["attempt"] > letter["attempt"] or row["state"] in _OPEN or row.get("due_at") is not None for row in attempts
    )


def _definition(draft: JobDraft) -> Row:
    return {
        "task_name": draft.task_name,
        "schedule": draft.schedule,
        "time_zone": draft.time_zone,
        "args": draft.args,
        "kwargs": draft.kwargs,
        "options": draft.options,
        "policies": draft.policies,
        "lock_timeout_minutes": draft.lock_timeout_minutes,
        "start_at": kept(draft.start_at),
    }


def _changes(write: JobChange, row: Row) -> Row:
    if isinstance(write, PauseJob):
        return {"enabled": 0, "disabled_reason": write.reason}
    if isinstance(write, SealJob):
        return {"args": write.args, "kwargs": write.kwargs}
    if isinstance(write, DeleteJob):
        return {"delete_requested": 1, "enabled": 0, "disabled_reason": DELETED}
    if isinstance(write, ResumeJob):
        reason = FINISHED if write.finished else None
        at = kept(write.next_run_time)
        return {"enabled": int(not write.finished), "disabled_reason": reason, "next_run_time": at}
    new = {**_definition(write.draft), "quarantine": None}
    # A job whose schedule had come to its end goes on if it has another one now.
    goes_on = write.reschedule and row.get("disabled_reason") == FINISHED
    if write.reschedule:
        new["next_run_time"] = kept(write.draft.next_run_time)
    if write.enabled or (write.enabled is None and goes_on):
        new.update(enabled=1, disabled_reason=None)
    elif write.enabled is False and row.get("enabled"):
        new.update(enabled=0, disabled_reason=PAUSED)
    return new
