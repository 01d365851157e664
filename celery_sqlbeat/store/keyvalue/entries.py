"""Tell in which indexes each row of a place stands. Pure."""

from collections.abc import Mapping

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.model import LEFT_THE_CODE
from celery_sqlbeat.model.lifecycle import SCHEDULED, TRANSITIONS
from celery_sqlbeat.model.one_offs import ONE_OFF
from celery_sqlbeat.store.keyvalue.rows import Row
from celery_sqlbeat.store.keyvalue.tables import (
    ALL_RELEASES,
    DEAD,
    DEFAULTS,
    DELETED,
    DISABLED,
    DUE_ONE_OFFS,
    ENDED_STATES,
    HELD,
    HIGHEST_SCORE,
    JOB,
    KEY,
    KEYS,
    LEASES,
    LOCK,
    LOCKS,
    NAME,
    NAMES,
    NODE,
    NODES,
    ONE_OFF_LEASES,
    ONE_OFFS,
    OPEN,
    OUTBOX,
    OWNER,
    OWNERS,
    PLANNED,
    QUARANTINED,
    RELEASE,
    RELEASES,
    REPAIR,
    RETRYING,
    RUN,
    RUNS,
    TAKEN,
    UNENDED,
    disabled_index,
    due_index,
    held_index,
    left_index,
    open_index,
    owned_index,
    replace_index,
    runs_index,
    score,
    slots_index,
    task_index,
    waiting_index,
)

_NEW = DEFAULTS["prior_state"]
_LEGAL = TRANSITIONS | {(_NEW, SCHEDULED)}


def entries(table: str, row_id: str, row: Row) -> Mapping[str, int]:
    """Return the indexes that a row stands in, and its score in each."""
    if table == RUN:
        return _run_entries(row)
    if table == JOB:
        return _job_entries(row)
    if table == NAME:
        return {NAMES: 0} if row.get("job_id") else {DELETED: score(row.get("deleted_at") or 0)}
    if table == NODE:
        return {NODES: score(row["heartbeat_at"])}
    if table == RELEASE:
        known = {} if row.get("entries") is None else {RELEASES: score(row["first_seen_at"])}
        return {ALL_RELEASES: 0, **known}
    if table == KEY:
        return {KEYS: score(row["ends_at"])}
    if table == LOCK:
        return {TAKEN: score(row["taken_at"]), **({LOCKS: 0} if row.get("lease_ends_at") is not None else {})}
    return {OWNERS: 0} if table == OWNER else {}


def _job_entries(row: Row) -> dict[str, int]:
    get = row.get
    owner, is_enabled, is_quarantined = get("code_owner"), bool(get("enabled")), get("quarantine") is not None
    if get("one_off"):
        if get("locked_by") is not None:
            return {ONE_OFF_LEASES: score(get("lease_ends_at") or 0)}
        if is_quarantined:
            return {REPAIR: 0}
        return {DUE_ONE_OFFS: score(row["retry_at"])} if is_enabled and get("retry_at") is not None else {}
    scores: dict[str, int] = {}
    due_at = get("retry_at")
    if due_at is not None:
        scores[RETRYING] = score(due_at)
    else:
        due_at = get("next_run_time")
    if get("locked_by") is not None:
        scores[LEASES] = score(get("lease_ends_at") or 0)
        if get("planned_at") is not None:
            scores[PLANNED] = score(row["planned_at"])
        if get("replace_at") is not None and get("run_id") is not None and is_enabled and not is_quarantined:
            scores[replace_index(owner)] = score(row["replace_at"])
    else:
        if is_enabled and not is_quarantined and due_at is not None:
            scores[due_index(owner, get("code_key") is not None)] = score(due_at)
        if is_quarantined or get("delete_requested") or (is_enabled and due_at is None):
            scores[REPAIR] = 0
    if is_quarantined:
        scores[QUARANTINED] = 0
    if owner is not None:
        scores[owned_index(owner)] = 0
    if is_enabled:
        if get("task_name") is not None:
            scores[task_index(row["task_name"])] = 0
        return scores
    scores[DISABLED] = 0
    if owner is not None:
        scores[disabled_index(owner)] = 0
        if get("disabled_reason") == LEFT_THE_CODE:
            scores[left_index(owner)] = 0
    return scores


def _run_entries(row: Row) -> dict[str, int]:
    get = row.get
    state, job_id, slot = row["state"], row["job_id"], score(row["scheduled_for"])
    if (way := (get("prior_state", _NEW), state)) not in _LEGAL:  # as the CHECK constraint in SQL
        raise StoreError(f"a run cannot get from {way[0]} to {state}")
    has_ended, is_one_off = state in ENDED_STATES, get("kind") == ONE_OFF
    scores = {RUNS: 0, (ONE_OFFS if is_one_off else runs_index(job_id)): 0 if is_one_off else slot}
    if has_ended or not is_one_off:
        scores[slots_index(state if has_ended else OPEN, is_one_off)] = slot
    if get("due_at") is not None:
        scores[OUTBOX] = scores[waiting_index(job_id)] = score(row["due_at"])
    if get("held_by") is not None:
        scores[HELD] = scores[held_index(job_id)] = score(row["lease_ends_at"])
    if state == "dlq":
        scores[DEAD] = 0
    if get("attempt", 1) > 1 and has_ended and state != "retry" and get("results_ended_at") is None:
        scores[UNENDED] = score(get("finished_at") or 0)
    if get("max_parallel") is not None:
        if state in ("claimed", "running"):
            scores[open_index(job_id)] = HIGHEST_SCORE
        elif state == "dispatched" and get("started_at") is None and get("reason") is None:
            scores[open_index(job_id)] = score(get("published_at") or 0)
    return scores
