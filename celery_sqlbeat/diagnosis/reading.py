"""Reads from the database what a check goes by, in a bounded time. Nothing is changed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from celery_sqlbeat.beat.entries import owner_of
from celery_sqlbeat.beat.foreseeing import examine
from celery_sqlbeat.beat.routing import Routed, queue_of
from celery_sqlbeat.beat.strangers import doubled
from celery_sqlbeat.config import Settings
from celery_sqlbeat.definition import Rules, read_definition
from celery_sqlbeat.diagnosis.facts import Ground, Jobs, SeenJob
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.handle.knowing import knowers
from celery_sqlbeat.handle.refused import refused_jobs
from celery_sqlbeat.handle.rescheduling import is_asked_of_code, text_of
from celery_sqlbeat.handle.status import HOUR, processes, server_clock
from celery_sqlbeat.long_runs import LEAST_SECONDS, MOST_RUNS, long_runs
from celery_sqlbeat.model import JobRecord, RunRecord
from celery_sqlbeat.pace import LEAST_PERIOD, SlowJob, slow_job
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.protocol import LAST_ID

PAGE = 500  # rows that are read at a time
_HISTORY_PAGES = 10  # of the latest runs; a slow job is among them again and again


def read_ground(app: Any, store: Store, settings: Settings, rules: Rules, seconds: float) -> Ground:
    """What the database says; raises a StoreError where it cannot."""
    remark = store.check_schema().remark
    nodes = store.nodes()
    store_id, _ = nodes.identity()
    _, skew = server_clock(nodes)
    seen = nodes.seen(HOUR)
    living = store.for_code().living(settings.beat_alive)
    jobs = read_jobs(app, store, rules, seconds)
    lasting = list(long_runs(store.for_admin().running(LEAST_SECONDS, MOST_RUNS), rules))
    slow = read_slow(store, rules, seconds)
    known = knowers(store, seen, settings.worker_alive)
    refused = refused_jobs(store, seen)
    twice = doubled(store.for_code(), seen)
    return Ground(
        store_id,
        skew,
        processes(seen, settings),
        jobs,
        living=living,
        refused=refused,
        long_runs=lasting,
        knowers=known,
        remark=remark,
        slow_jobs=slow,
        doubled=twice,
        pooling=store.database.pooling(),
    )


def read_slow(store: Store, rules: Rules, seconds: float) -> list[SlowJob]:
    """Jobs whose last runs took longer than their period, as far as the latest history and the time go."""
    admin, end = store.for_admin(), time.monotonic() + seconds
    runs: dict[str, list[RunRecord]] = {}
    before = LAST_ID
    for _ in range(_HISTORY_PAGES):
        page = admin.runs(PAGE, before)
        for run in page:
            if run.started_at is not None and run.finished_at is not None:
                runs.setdefault(run.job_name, []).append(run)
        if len(page) < PAGE or time.monotonic() >= end:
            break
        before = page[-1].run_id
    lasting = [name for name, some in runs.items() if any(_took(run) >= LEAST_PERIOD for run in some)]
    found = []
    for row in admin.jobs(lasting).values() if lasting else ():
        with contextlib.suppress(FieldError):  # a beat sets it aside when it is due
            if row.enabled and not is_asked_of_code(row):
                found.append(slow_job(row.job_name, read_definition(text_of(row), rules), runs[row.job_name]))
    return sorted((one for one in found if one is not None), key=lambda one: one.job_name)


def _took(run: RunRecord) -> float:
    return (run.finished_at - run.started_at).total_seconds() if run.finished_at and run.started_at else 0.0


def read_jobs(app: Any, store: Store, rules: Rules, seconds: float) -> Jobs:
    """The enabled jobs, as many as the time allows, and those that are set aside."""
    admin, end = store.for_admin(), time.monotonic() + seconds
    aside: dict[str, str] = {}
    after = ""
    while page := admin.set_aside(PAGE, after):
        aside.update({row.job_name: str(row.quarantine) for row in page})
        after = page[-1].job_name
    seen: list[SeenJob] = []
    after = ""
    while page := admin.list_jobs(PAGE, after):
        seen += _seen(app, page, rules)
        after = page[-1].job_name
        if time.monotonic() >= end and len(page) == PAGE:
            return Jobs(seen, aside, False)
    return Jobs(seen, aside)


def _seen(app: Any, page: list[JobRecord], rules: Rules) -> Iterator[SeenJob]:
    for row in page:
        if not row.enabled or row.quarantine is not None:
            continue
        text = text_of(row)
        if is_asked_of_code(row):
            text = text._replace(schedule=None, interval_minutes=None)  # the rest of the row counts as ever
        try:
            definition = read_definition(text, rules)
        except FieldError:
            continue  # a beat sets it aside when it is due, with this reason
        call = definition.call
        is_ours = row.code_owner in (None, owner_of(app))  # another app has other tasks and queues
        refusal = refusal_of(app, call, with_arguments=row.code_key is None) if is_ours else None
        queue, owner, has_task_id = queue_of(app, call), row.code_owner, bool(call.options.get("task_id"))
        yield SeenJob(row.job_name, call.task_name, queue, definition.lease_seconds, owner, refusal, has_task_id)


def refusal_of(app: Any, call: Routed, with_arguments: bool) -> str | None:
    """Why no message can ever be made of a call."""
    try:
        examine(app, call, with_arguments)
    except FieldError as error:
        return str(error)
    return None
