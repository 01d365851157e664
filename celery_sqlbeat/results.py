"""Ends the results of attempts that another one followed, once their slot has ended: nobody else ever would.

To Celery such an attempt is in RETRY, or was started and its process killed. Whoever waits for its result is told which
attempt ended the slot. Safe to do twice, and by several at once.
"""

import json
import logging
from typing import Any

from celery import states
from celery.backends.base import DisabledBackend

from celery_sqlbeat.errors import AttemptFollowed
from celery_sqlbeat.model import EndedSlot
from celery_sqlbeat.store.protocol import ResultStore

logger = logging.getLogger(__name__)

PAGE = 100  # slots at a time
DAY_SECONDS = 86400.0  # after it results have expired, as Celery sets it; and nobody waits any more


def end_results(app: Any, store: ResultStore) -> bool:
    """End the results of a page of slots; whether there may be more."""
    slots = store.unended(PAGE, DAY_SECONDS)
    if not slots:
        return False
    backend = app.backend
    if _keeps_results(backend):
        for slot in slots:
            for run_id, attempt in slot.earlier:
                _end(app, backend, slot, run_id, attempt)
    store.ended([run_id for slot in slots for run_id in (slot.run_id, *dict(slot.earlier))])
    return len(slots) == PAGE


def _end(app: Any, backend: Any, slot: EndedSlot, run_id: str, attempt: int) -> None:
    found = backend.get_task_meta(run_id, cache=False)["status"]
    if found in states.READY_STATES or (found == states.PENDING and not _is_wanted(app, slot)):
        return
    followed = AttemptFollowed(
        f"attempt {attempt} of job {slot.job_name!r} came to nothing; its slot ended as {slot.state} with attempt "
        f"{slot.attempt}, {slot.run_id}"
    )
    backend.store_result(run_id, followed, states.FAILURE)


def _keeps_results(backend: Any) -> bool:
    """Whether results can be looked up by others: not without a backend, nor where each is sent to who asked."""
    return not isinstance(backend, DisabledBackend) and type(backend).__module__ != "celery.backends.rpc"


def _is_wanted(app: Any, slot: EndedSlot) -> bool:
    """Whether somebody may wait for a result of which nothing was ever stored."""
    try:
        options = json.loads(slot.options) if isinstance(slot.options, str) else {}
    except ValueError:
        options = {}
    ignored = options.get("ignore_result") if isinstance(options, dict) else None
    task = app.tasks.get(slot.task_name)
    return task is not None and not (task.ignore_result if ignored is None else ignored)
