"""Gathers what an explanation needs: the row, its attempts, who is there. Everything is read, nothing changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from celery_sqlbeat.beat.routing import queue_of
from celery_sqlbeat.config import Settings
from celery_sqlbeat.definition import Definition, Rules, read_definition
from celery_sqlbeat.errors import FieldError, NoSuchJob
from celery_sqlbeat.handle.explaining import Explanation, explain
from celery_sqlbeat.handle.facts import Facts
from celery_sqlbeat.handle.knowing import knowers, known_in
from celery_sqlbeat.handle.records import Run, job_of, run_of
from celery_sqlbeat.handle.rescheduling import is_asked_of_code, text_of
from celery_sqlbeat.handle.status import HOUR, processes
from celery_sqlbeat.knowledge import nobody_has
from celery_sqlbeat.model import JobRecord
from celery_sqlbeat.store import Store

PAGE = 100  # attempts that are read at a time


def explain_job(app: Any, store: Store, settings: Settings, rules: Rules, name: str, slots: int) -> Explanation:
    """Tell why a job ran or did not run at each of its last slots."""
    row = store.for_admin().jobs([name]).get(name)
    if row is None:
        raise NoSuchJob(name, settings.namespace)
    definition = _definition(row, rules)
    nodes = store.nodes().seen(max(HOUR, settings.worker_memory))
    queue = None if definition is None else queue_of(app, definition.call)
    known = known_in(knowers(store, nodes, settings.worker_alive), queue)
    return explain(
        Facts(
            job=job_of(row),
            definition=definition,
            runs=list(_attempts(store, row, slots)),
            processes=processes(nodes, settings),
            queue=queue,
            claimed_at=row.claimed_at,
            published_at=row.published_at,
            started=row.started_retry is not None,
            republishes=row.republishes,
            is_unknown=definition is not None and nobody_has(definition.call.task_name, known),
            unknown_seconds=settings.unknown_task_timeout,
        )
    )


def _definition(row: JobRecord, rules: Rules) -> Definition | None:
    text = text_of(row)
    try:
        if not is_asked_of_code(row):
            return read_definition(text, rules)
        found = read_definition(text._replace(schedule=None, interval_minutes=None), rules)
        return found._replace(timeline=_Unknown())
    except FieldError:
        return None


def _attempts(store: Store, row: JobRecord, slots: int) -> Iterator[Run]:
    """All attempts of the last slots, the latest first."""
    admin, seen = store.for_admin(), set[tuple[object, str]]()
    page = admin.job_runs(row.job_id, PAGE)
    while page:
        for one in page:
            seen.add((one.scheduled_for, one.kind))
            if len(seen) > slots:
                return
            run = run_of(one)
            # Its own row learns of that when it starts or ends.
            if one.run_id == row.run_id and run.published_at is None:
                run = replace(run, published_at=row.published_at)
            yield run
        page = admin.job_runs(row.job_id, PAGE, page[-1]) if len(page) == PAGE else []


class _Unknown:
    """The slots of a job that only its code can time."""

    def first_slot(self, *_: Any, **__: Any) -> None:
        """Nobody here can say."""

    def plan(self, *_: Any, **__: Any) -> Any:
        """Never asked for: an explanation names no slots then."""
        raise NotImplementedError

    def passed_by(self, *_: Any, **__: Any) -> Any:
        """Never asked for, as `plan`."""
        raise NotImplementedError

    def next_after_retry(self, *_: Any, **__: Any) -> Any:
        """Never asked for, as `plan`."""
        raise NotImplementedError
