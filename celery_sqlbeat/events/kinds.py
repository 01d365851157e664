"""Every event: its name, its fields, the level and the sentence of its line in the log.

Call one to emit it. Its stem is that of the store's verb and of the SQL block; what a batch does is
one event.
"""

from collections.abc import Sequence
from datetime import datetime
from logging import CRITICAL, DEBUG, ERROR, INFO, WARNING

from celery_sqlbeat.events.emitter import event

# Beats: from the claim to the mark


@event(DEBUG, "a beat claimed jobs")
def jobs_claimed(*, claims: int, job_names: Sequence[str], lateness: Sequence[float]) -> None: ...


@event(INFO, "a beat lost a claim to another beat or to a worker")
def claim_lost(*, job_name: str, run_id: str, fence: int) -> None: ...


@event(DEBUG, "a beat released claims")
def claims_released(*, claims: int, reason: str, retry_seconds: float) -> None: ...


@event(DEBUG, "the broker confirmed messages")
def messages_published(*, messages: int, job_names: Sequence[str]) -> None: ...


@event(DEBUG, "slots were fired and forgotten")
def runs_dispatched(*, runs: int, job_names: Sequence[str]) -> None: ...


@event(ERROR, "a message was not published")
def publish_failed(
    *, job_name: str, run_id: str, fence: int, slot: datetime, reason: str, kind: str, retry_seconds: float | None
) -> None:
    """See `kind`: "broker" (not counted), "message" (a failure of its slot) or "republish"."""


@event(INFO, "slots were skipped")
def slot_skipped(*, job_name: str, reason: str, slots: int, first: datetime, last: datetime) -> None: ...


@event(ERROR, "a job is quarantined until its row is corrected")
def job_quarantined(*, job_name: str, reason: str) -> None: ...


# Beats: leases that have ended


@event(WARNING, "a beat reclaimed a run whose lease had ended")
def run_reclaimed(*, job_name: str, run_id: str, slot: datetime, attempt: int, fence: int, reason: str) -> None: ...


@event(WARNING, "runs did not start in time and are published again")
def runs_republished(*, runs: int, job_names: Sequence[str]) -> None: ...


@event(WARNING, "a slot became a dead letter")
def dead_lettered(*, job_name: str, run_id: str, slot: datetime, attempt: int, reason: str | None) -> None:
    """Emit as a warning: the failure of the last attempt is an error, which alerts already."""


@event(INFO, "a run was cancelled")
def run_cancelled(*, job_name: str, run_id: str, reason: str) -> None: ...


@event(DEBUG, "old history was deleted")
def history_purged(*, rows: int, refused: int) -> None: ...


# Beats: jobs, and who else is there


@event(INFO, "a beat brought its beat_schedule into the table")
def jobs_imported(*, app: str, release: str, winner: str, added: int, changed: int, left: int) -> None:
    """See `winner`: the release whose definitions hold.

    Where that is another release, this beat changed nothing.
    """


@event(ERROR, "an entry of the beat_schedule is left out")
def entry_rejected(*, entry: str, reason: str) -> None: ...


@event(WARNING, "a conflict was found in the namespace")
def conflict_found(*, reason: str, remedy: str) -> None: ...


@event(WARNING, "a run goes on for several intervals of its job")
def long_run_seen(
    *, job_name: str, run_id: str, worker: str | None, seconds: float, intervals: int, remedy: str
) -> None: ...


@event(WARNING, "no worker of a queue has celery-sqlbeat, so its tasks are fired and forgotten")
def worker_unleased(*, queue: str | None) -> None:
    """Emit once per queue; None is any exchange."""


@event(WARNING, "not every worker of a queue knows a task")
def task_unknown(
    *, task_name: str, queue: str | None = None, job_name: str | None = None, effect: str, remedy: str
) -> None: ...


@event(ERROR, "a duty of a beat failed and is tried again", has_traceback=True)
def duty_failed(*, duty: str, error: Exception | str, retry_seconds: float) -> None: ...


# Workers: messages


@event(INFO, "a message was dropped, as its run may not start")
def start_rejected(*, message_id: str, task_name: str, reason: str, ends_slot: bool) -> None:
    """Emit for a duplicate, a stale attempt, or a message too late, whose slot is skipped."""


@event(WARNING, "a message goes back to the broker")
def message_returned(*, message_id: str, task_name: str, reason: str) -> None: ...


@event(ERROR, "a message is not for this worker")
def message_refused(*, message_id: str, task_name: str | None, effect: str, reason: str) -> None:
    """Emit for a message of another store, namespace or newer version, or with a damaged header."""


# Workers: leases and outcomes


@event(DEBUG, "a worker started a run")
def run_started(*, job_name: str, run_id: str, slot: datetime, attempt: int, fence: int) -> None: ...


@event(DEBUG, "a worker extended leases")
def leases_extended(*, leases: int, seconds: float) -> None: ...


@event(WARNING, "leases were not extended")
def heartbeat_failed(*, leases: int, reason: Exception | str) -> None: ...


@event(ERROR, "a run lost its lease and its task is stopped")
def lease_lost(*, job_name: str, run_id: str, reason: str) -> None: ...


@event(ERROR, "a run exceeded the max_runtime of its job and its task is stopped")
def run_overdue(*, job_name: str, run_id: str, max_runtime: float) -> None: ...


@event(DEBUG, "a worker wrote the outcome of a run")
def run_finished(*, job_name: str, run_id: str, state: str, reason: str | None, seconds: float | None) -> None:
    """`seconds`: how long its body took; None where it did not begin."""


@event(WARNING, "a task failed and is tried again")
def run_retried(*, task_name: str, run_id: str, error: Exception | str) -> None: ...


@event(ERROR, "the outcome of a run is not written")
def finish_failed(*, run_id: str | None, effect: str, error: Exception | str) -> None: ...


@event(INFO, "this worker keeps leases from now on")
def worker_ready() -> None: ...


@event(WARNING, "this worker cannot keep leases yet and begins no scheduled task")
def worker_not_ready(*, reason: str) -> None: ...


@event(CRITICAL, "this worker ends, as it could not keep the leases of its runs")
def worker_refused(*, reason: str) -> None: ...


# Any process


@event(ERROR, "the database cannot be reached")
def database_unavailable(*, error: Exception | str, retry_seconds: float) -> None:
    """Emit at the beginning, and ever more rarely while it lasts; so the next three."""


@event(WARNING, "the database can be reached again")
def database_available(*, tries: int) -> None: ...


@event(ERROR, "the broker cannot be reached")
def broker_unavailable(*, error: Exception | str, retry_seconds: float) -> None: ...


@event(WARNING, "the broker can be reached again")
def broker_available(*, tries: int) -> None: ...


@event(DEBUG, "a process registered itself")
def node_registered(*, node: str, kind: str) -> None: ...


@event(ERROR, "the database refuses a row and takes the others")
def row_refused(*, action: str, row: str, error: Exception | str) -> None: ...


@event(WARNING, "a fast path is off, as a library lacks what it needs")
def hook_missing(*, feature: str, reason: str) -> None: ...


@event(WARNING, "something needs attention")
def advice(*, topic: str, text: str, remedy: str) -> None: ...


@event(WARNING, "a step failed and the rest goes on")
def step_failed(*, step: str, subject: str | None = None, error: Exception | str) -> None: ...


@event(INFO, "for information")
def noted(*, topic: str, text: Exception | str) -> None: ...


@event(ERROR, "an unexpected error was caught", has_traceback=True)
def fault_caught(*, doing: str, error: BaseException | str, subject: str | None = None) -> None: ...
