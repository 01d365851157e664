"""Cancel runs: end what has not begun, have what runs stopped, and tell all who wait."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery_sqlbeat.celery_bridge.inspect_workers import recall
from celery_sqlbeat.celery_bridge.tasks import store_revoked
from celery_sqlbeat.config.validation import is_text, shown
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.model import RunRecord
from celery_sqlbeat.model.lifecycle import CLAIMED, LONGEST_REASON, RETRY, RUNNING, SCHEDULED
from celery_sqlbeat.model.one_offs import Cancellation, CancelRequest
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import JobQuery, RunQuery

_MOST = 500  # of the newest attempts of a job that are searched for those that go on
_GOES_ON = (SCHEDULED, CLAIMED, RUNNING)
_LONGEST_BY = 200  # characters, as wide as the column


class Canceller:
    """Asks the store, and then whoever can make it quick."""

    def __init__(self, app: Any, store: Callable[[], Store]) -> None:
        """Take a function that gives the store when it is first needed."""
        self._app, self._store = app, store

    def cancel(self, rows: Sequence[RunRecord], reason: str, by: str | None) -> Mapping[str, Cancellation]:
        """Cancel these runs, and say what became of each; one that is gone is missing."""
        asker = _checked("by", _who() if by is None else by, _LONGEST_BY)
        requests = [CancelRequest(row.run_id, asker, _checked("reason", reason, LONGEST_REASON)) for row in rows]
        store = self._store()
        answers = store.cancel(requests) if requests else {}
        if asked := [run_id for run_id, answer in answers.items() if answer.is_asked]:
            recall(self._app, asked)
        for row in rows:
            if row.run_id in answers and answers[row.run_id].is_done:
                store_revoked(self._app, row.run_id, row.task_name or _task_of(store, row.job_name))
        return answers

    def open_runs(self, job: str) -> list[RunRecord] | None:
        """Return the attempts of a job that go on or wait; None where there is no such job."""
        store = self._store()
        row = store.jobs(JobQuery(names=[job])).get(job)
        if row is None:
            return None
        states = _GOES_ON if row.retry_at is None else (*_GOES_ON, RETRY)
        newest = store.runs(RunQuery(job_id=row.job_id, page_size=_MOST))
        runs = [run for run in newest if run.state in states]
        if row.run_id is not None and row.run_id not in {run.run_id for run in newest}:
            runs += store.runs(RunQuery(run_ids=[row.run_id]))
        return runs


def _task_of(store: Store, job: str) -> str | None:
    row = store.jobs(JobQuery(names=[job])).get(job)
    return None if row is None else row.task_name


def _checked(field: str, value: object, longest: int) -> str:
    if not isinstance(value, str) or not is_text(value) or len(value) > longest:
        raise FieldError(field, shown(value), f"write a text of at most {longest} characters")
    return value


def _who() -> str:
    """Return the user who asks, at this host."""
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):  # nobody has this number here
        user = "somebody"
    return f"{user}@{socket.gethostname()}"[:_LONGEST_BY]
