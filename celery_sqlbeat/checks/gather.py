"""Gather facts from the database, the app, the broker and the workers in a bounded time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

from celery_sqlbeat import environment
from celery_sqlbeat.api.jobs import PAGE, job_pages
from celery_sqlbeat.api.reschedule import definition_of, is_timed_by_code
from celery_sqlbeat.api.runs import run_pages
from celery_sqlbeat.api.status import HOUR, processes, read_worker_tasks, refused_jobs, server_clock
from celery_sqlbeat.beat.other_schedulers import doubled_jobs
from celery_sqlbeat.beat_schedule.entries import CodeSchedule, owner_of, read_entries
from celery_sqlbeat.celery_bridge.app import fingerprint, queue_of
from celery_sqlbeat.celery_bridge.call_check import check_call
from celery_sqlbeat.celery_bridge.inspect_workers import ask_workers
from celery_sqlbeat.celery_bridge.schedules import is_lazy
from celery_sqlbeat.checks.facts import BrokerFacts, CodeFacts, DatabaseFacts, EnabledJob, JobFacts
from celery_sqlbeat.config.payload_key import is_sealed
from celery_sqlbeat.config.policy import policy_for
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.errors import FieldError
from celery_sqlbeat.model import JobRecord, RunRecord
from celery_sqlbeat.model.definition import Call, Rules
from celery_sqlbeat.model.run_times import LEAST_PERIOD, LEAST_SECONDS, MOST_LONG_RUNS, SlowJob, long_runs, slow_job
from celery_sqlbeat.publish.connection import unreachable
from celery_sqlbeat.store import Store
from celery_sqlbeat.store.records import JobQuery, RunQuery

T = TypeVar("T")

KOMBU_VISIBILITY = 3600.0  # seconds, the default of kombu
_WITH_VISIBILITY = ("redis", "rediss", "sentinel")
_HISTORY_PAGES = 10  # of the latest runs; a slow job appears in them often


def read_database(app: Any, store: Store, settings: Settings, rules: Rules, seconds: float) -> DatabaseFacts:
    """Read the facts of the database; raises a StoreError where it does not answer."""
    schema = store.check_schema()
    _, skew = server_clock(store)
    seen = store.nodes(HOUR)
    living = store.living(settings.beat_alive)
    jobs = read_jobs(app, store, rules, seconds)
    lasting = list(long_runs(store.running(LEAST_SECONDS, MOST_LONG_RUNS), rules))
    slow = read_slow(store, rules, seconds)
    tasks = read_worker_tasks(store, seen, settings.worker_alive)
    refused = refused_jobs(store, seen)
    doubled = doubled_jobs(store, seen)
    return DatabaseFacts(
        schema.store_id,
        skew,
        processes(seen, settings),
        jobs,
        living=living,
        refused=refused,
        long_runs=lasting,
        worker_tasks=tasks,
        remark=schema.remark,
        slow_jobs=slow,
        doubled=doubled,
        remarks=store.remarks(),
    )


def read_slow(store: Store, rules: Rules, seconds: float) -> list[SlowJob]:
    """Find jobs whose last runs took longer than their period, in the latest history."""
    end = environment.monotonic() + seconds
    runs: dict[str, list[RunRecord]] = {}
    for page in islice(run_pages(store, RunQuery()), _HISTORY_PAGES):
        for run in page:
            if run.started_at is not None and run.finished_at is not None:
                runs.setdefault(run.job_name, []).append(run)
        if environment.monotonic() >= end:
            break
    lasting = [name for name, attempts in runs.items() if any(_seconds(run) >= LEAST_PERIOD for run in attempts)]
    slow = []
    for row in store.jobs(JobQuery(names=lasting)).values():
        definition = definition_of(row, rules)
        if definition is not None and row.enabled and not is_timed_by_code(row):
            slow.append(slow_job(row.job_name, definition, runs[row.job_name]))
    return sorted((job for job in slow if job is not None), key=lambda job: job.job_name)


def _seconds(run: RunRecord) -> float:
    return (run.finished_at - run.started_at).total_seconds() if run.finished_at and run.started_at else 0.0


def read_jobs(app: Any, store: Store, rules: Rules, seconds: float) -> JobFacts:
    """Read the enabled jobs, as many as the time allows, and those in quarantine."""
    end = environment.monotonic() + seconds
    quarantined = {row.job_name: str(row.quarantine) for page in job_pages(store, True) for row in page}
    enabled: list[EnabledJob] = []
    locked: list[str] = []
    for page in job_pages(store):
        enabled += _enabled_jobs(app, page, rules)
        locked += [row.job_name for row in page if row.enabled and (is_sealed(row.args) or is_sealed(row.kwargs))]
        if environment.monotonic() >= end and len(page) == PAGE:
            return JobFacts(enabled, quarantined, False, locked)
    return JobFacts(enabled, quarantined, True, locked)


def _enabled_jobs(app: Any, page: list[JobRecord], rules: Rules) -> Iterator[EnabledJob]:
    for row in page:
        if not row.enabled or row.quarantine is not None:
            continue
        definition = definition_of(row, rules)
        if definition is None:
            continue  # a beat sets it aside when it is due, with the reason
        call = definition.call
        is_ours = row.code_owner in (None, owner_of(app))  # another app has other tasks and queues
        refusal = refusal_of(app, call, with_arguments=row.code_key is None) if is_ours else None
        queue, owner, has_task_id = queue_of(app, call), row.code_owner, bool(call.options.get("task_id"))
        yield EnabledJob(row.job_name, call.task_name, queue, definition.lease_seconds, owner, refusal, has_task_id)


def refusal_of(app: Any, call: Call, with_arguments: bool) -> str | None:
    """Tell why no message can ever be made of a call; None where one can."""
    try:
        check_call(app, call, with_arguments)
    except FieldError as error:
        return str(error)
    return None


def gather_code(app: Any, settings: Settings) -> CodeFacts:
    """Import the tasks of the app, and read what it defines; raises what its modules raise."""
    app.loader.import_default_modules()
    app.finalize()
    schedule = dict(app.conf.beat_schedule or {})
    code = read_entries(app, schedule, settings.release, settings.policies)
    policies = {name: policy_for(name, settings.policies) for name in code.entries}
    refusals = dict(_refusals(app, code))
    tasks, problems = frozenset(app.tasks), tuple(code.problems)
    return CodeFacts(tasks, policies, problems, code.owner, refusals, code.with_task_id())


def _refusals(app: Any, code: CodeSchedule) -> Iterator[tuple[str, str]]:
    for name, item in code.entries.items():
        entry = item.entry
        args, kwargs = entry.args or (), entry.kwargs or {}
        if item.definition.code_key is None or not isinstance(args, (list, tuple)):
            continue
        if not any(is_lazy(value) for value in (*args, *kwargs.values())):
            call = Call(entry.task, args, kwargs, entry.options or {})
            refusal = refusal_of(app, call, with_arguments=True)
            if refusal is not None:
                yield name, refusal


def gather_broker(app: Any, seconds: float) -> BrokerFacts:
    """Connect to the broker and read its facts; raises BrokerUnavailable where that fails."""
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=seconds)
            transport = str(connection.get_transport_cls().driver_type)
            options = connection.transport_options or {}
            identity = fingerprint(connection)
    except Exception as error:  # kombu passes on what each client raises
        reason = error.args[0] if isinstance(error, KeyError) and error.args else error  # a KeyError quotes its text
        raise unreachable(app, " ".join(str(reason).split()) or type(error).__name__) from error
    visibility = None
    if transport in _WITH_VISIBILITY:
        visibility = float(options.get("visibility_timeout") or KOMBU_VISIBILITY)
    return BrokerFacts(transport, identity, visibility, None, None)


def gather_workers(app: Any, broker: BrokerFacts, seconds: float, with_tasks: bool) -> BrokerFacts:
    """Ask the workers for their queues, and with `with_tasks` for their tasks.

    Raises what the transport raises.
    """
    answers = ask_workers(app, seconds)
    tasks = None
    if with_tasks and answers:
        registered = app.control.inspect(timeout=seconds).registered() or {}
        tasks = frozenset(
            str(task).split(" ")[0] for tasks_of_worker in registered.values() for task in tasks_of_worker
        )
    return BrokerFacts(broker.transport, broker.fingerprint, broker.visibility_timeout, tuple(answers), tasks)


def within(seconds: float, question: Callable[[], T]) -> T:
    """Wait for an answer, or raise TimeoutError; the asking thread may outlive the wait."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            answers.append(question())
        except BaseException as error:  # raised in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=ask, name="sqlbeat-check", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answers[0]
