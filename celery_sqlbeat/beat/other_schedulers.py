"""Find a stock beat that sends the same jobs, and rows of django-celery-beat that nobody fires."""

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from celery_sqlbeat import environment, events
from celery_sqlbeat.beat_schedule.entries import job_name_of
from celery_sqlbeat.model import SeenNode
from celery_sqlbeat.model.nodes import Stranger, strangers
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import JobQuery

SEEN_SECONDS = 600.0  # for which another scheduler's message counts; it may have been stopped since
_MOST_JOBS = 1000  # that are compared
_REMIND_SECONDS = 600.0
_MOST_ROWS = 1000  # of django-celery-beat that are compared
_MOST_NAMES = 10  # in one sentence
_DJANGO = "django-celery-beat"
STOP_THE_OTHER_BEAT = "stop that scheduler, or take the entry out of its schedule or out of this one"
IMPORT_THE_ROWS = "bring them in, or disable them there: celery -A app sqlbeat jobs import --from django-celery-beat"


class DoubledJobs(NamedTuple):
    """A job that another scheduler sends as well."""

    job_name: str
    stranger: Stranger
    worker: str

    def __str__(self) -> str:
        stranger = self.stranger
        entry = f" (entry {stranger.name})" if stranger.name else ""
        return (
            f"another scheduler, {stranger.origin or 'of unknown origin'}, sends the task {stranger.task}{entry} of "
            f"job {self.job_name} as well, so that it runs twice: {self.worker} received it "
            f"{stranger.seconds_ago:.0f} s ago"
        )


def doubled_jobs(store: Store, nodes: Sequence[SeenNode]) -> list[DoubledJobs]:
    """Return the jobs of the table that other schedulers send as well.

    Workers tell of scheduled messages that no beat of this package has sent; only what the table
    has as well runs twice.
    """
    beats = {f"gen{node.pid}@{node.host}" for node in nodes if node.kind == "beat"}
    seen = [
        (stranger, node.node_id)
        for node in nodes
        if node.kind == "worker" and node.stopped_at is None
        for stranger in strangers(node.details)
        if (node.now - node.heartbeat_at).total_seconds() + stranger.seconds_ago < SEEN_SECONDS
        and stranger.origin not in beats
    ]
    tasks = sorted({stranger.task for stranger, _ in seen})
    jobs = store.jobs(JobQuery(of_tasks=tasks, page_size=_MOST_JOBS)) if tasks else {}
    doubled: dict[str, DoubledJobs] = {}
    for stranger, worker in seen:
        names = [name for name, job in jobs.items() if job.task_name == stranger.task and stranger.name in (None, name)]
        if names:
            doubled.setdefault(names[0], DoubledJobs(names[0], stranger, worker))
    return list(doubled.values())


class OtherSchedulers:
    """Warns in the log of a beat of what is sent twice, again every ten minutes."""

    def __init__(self, store: Store, clock: Callable[[], float] = environment.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._next: dict[str, float] = {}

    def find(self) -> None:
        """Warn of what the workers have seen."""
        now = self._clock()
        doubled = doubled_jobs(self._store, self._store.nodes(SEEN_SECONDS))
        self._next = {job.job_name: self._next.get(job.job_name, now) for job in doubled}
        for job in doubled:
            if self._next[job.job_name] <= now:
                events.conflict_found(reason=str(job), remedy=STOP_THE_OTHER_BEAT)
                self._next[job.job_name] = now + _REMIND_SECONDS


class LeftRows(NamedTuple):
    """Rows of django-celery-beat that are not in the table, by name.

    They are left where a shop has switched without importing them, or a program still writes some.
    `is_whole` is False where there are more than were compared.
    """

    names: list[str]
    is_whole: bool

    def __str__(self) -> str:
        shown = ", ".join(self.names[:_MOST_NAMES])
        if len(self.names) > _MOST_NAMES:
            shown += f" and {len(self.names) - _MOST_NAMES} more"
        count = f"{len(self.names)}" if self.is_whole else f"at least {len(self.names)}"
        return (
            f"{count} enabled periodic tasks of django-celery-beat are not in the table, and these beats do not fire "
            f"them: {shown}"
        )


def left_rows(store: Store) -> LeftRows | None:
    """Return the rows that are not in the table; None where there are none, or none can be read.

    It reads Django's database, and closes the connection if it has opened it.
    """
    enabled = _enabled()
    if not enabled:
        return None
    names = enabled[:_MOST_ROWS]
    there = store.jobs(JobQuery(names=[job_name_of(name) for name in names]))
    missing = [name for name in names if job_name_of(name) not in there]
    return LeftRows(missing, len(enabled) <= _MOST_ROWS) if missing else None


def tell_left_rows(store: Store) -> None:
    """Warn of left rows in the log, from a thread: Django's database may not answer."""
    if "django" not in sys.modules:
        return

    def tell() -> None:
        try:
            rows = left_rows(store)
        except Exception as error:  # our own database is unavailable: the beat reports that itself
            events.noted(topic=_DJANGO, text=error)
            return
        if rows is not None:
            events.advice(topic=_DJANGO, text=str(rows), remedy=IMPORT_THE_ROWS)

    threading.Thread(target=tell, name="sqlbeat-django", daemon=True).start()


def _enabled() -> list[str]:
    """Return the names of the enabled rows, one more than are compared; none in other projects."""
    model = _model()
    if model is None:
        return []
    from django.db import connections

    rows = model.objects.filter(enabled=True).exclude(one_off=True, total_run_count__gt=0).order_by("name")
    connection = connections[rows.db]
    was_open = connection.connection is not None
    try:
        return list(rows.values_list("name", flat=True)[: _MOST_ROWS + 1])
    except Exception as error:  # its tables are not there, its database is away: whatever its backend raises
        events.noted(topic=_DJANGO, text=f"its periodic tasks cannot be read: {error}")
        return []
    finally:
        if not was_open:
            connection.close()


def _model() -> Any:
    """Return the model of its rows, if this process has set up Django with it.

    Celery sets Django up for every app of a Django project.
    """
    if "django" not in sys.modules:
        return None
    try:
        from django.apps import apps

        is_there = apps.ready and apps.is_installed("django_celery_beat")
        return apps.get_model("django_celery_beat", "PeriodicTask") if is_there else None
    except Exception as error:  # settings that do not load, a model of another release
        events.noted(topic=_DJANGO, text=f"its rows are not checked: {error}")
        return None
