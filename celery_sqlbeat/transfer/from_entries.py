"""Read schedule entries: those of the app's code, as stock beat or redbeat ran them.

The `beat_schedule` is read as a beat reads it, the last runs of stock beat from its shelve file,
and the entries in Redis through redbeat itself and the app's settings.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from celery_sqlbeat.beat_schedule.entries import job_name_of, read_entries
from celery_sqlbeat.beat_schedule.plan import StockRun
from celery_sqlbeat.beat_schedule.shelve_file import entries_in, runs_in_code, runs_of
from celery_sqlbeat.celery_bridge.schedules import default_entries, from_celery, zone_of
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.errors import FieldError, SourceUnreadable
from celery_sqlbeat.transfer.jsonl import ImportedJob, SourceJobs, utc

_PAGE = 500  # keys of one scan, so that a large Redis is not held up


def from_beat_schedule(app: Any, settings: Settings) -> SourceJobs:
    """Read the app's `beat_schedule`, with the entries that Celery adds, as a beat reads it."""
    app.loader.init_worker()  # tasks may add entries when they are imported, as they do in a beat
    app.finalize()
    schedule = app.conf.beat_schedule
    entries = {**default_entries(app, schedule), **schedule}
    source_jobs = SourceJobs(read_entries(app, entries, settings.release, settings.policies))
    source_jobs.runs.update(runs_in_code(schedule))
    for problem in source_jobs.code.problems:
        source_jobs.leave_out(problem.name, problem.reason)
    return source_jobs


def from_shelve(app: Any, settings: Settings, filename: str | None = None) -> SourceJobs:
    """Read the entries of the code, with their last runs from the file of stock beat."""
    source_jobs = from_beat_schedule(app, settings)
    stored = _entries_in(filename or app.conf.beat_schedule_filename)
    runs = runs_of(stored)
    for name in sorted(map(job_name_of, stored)):
        if name in source_jobs.code.entries and name in runs:
            source_jobs.runs[name] = runs[name]
        elif name not in source_jobs.code.wrong:
            source_jobs.leave_out(name, "it left the beat_schedule; stock beat would drop it, too")
    return source_jobs


def _entries_in(filename: str) -> Mapping[Any, Any]:
    try:
        stored = entries_in(filename)
    except Exception as error:  # whatever unpickling raises
        raise SourceUnreadable(f"{filename} is not a file of stock beat, or cannot be read: {error}") from error
    if stored is None:
        raise SourceUnreadable(f"there is no file {filename}: name the one that celery beat --schedule has")
    return stored


def from_redbeat(app: Any, settings: Settings) -> SourceJobs:
    """Read all entries of redbeat, with their last runs; Redis is not changed."""
    try:
        import redis
        from redbeat import schedulers
    except ImportError as error:
        raise SourceUnreadable(f"{error.name} is not installed here: run this where the old beat ran") from error
    source_jobs = from_beat_schedule(app, settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its own, about settings that it still reads
        conf = schedulers.ensure_conf(app)
        try:
            client = schedulers.get_redis(app)
            keys = sorted(_keys(client, conf))
            static = {job_name_of(name) for name in client.smembers(conf.statics_key)}
            for key in keys:
                _take(source_jobs, schedulers.RedBeatSchedulerEntry, app, conf, key, static)
        except redis.exceptions.RedisError as error:
            raise SourceUnreadable(f"Redis does not answer: {' '.join(str(error).split())}") from error
    return source_jobs


def _keys(client: Any, conf: Any) -> Iterator[str]:
    """Scan the keys of all entries: a disabled one need not be in redbeat's own schedule."""
    inside = conf.key_prefix + ":"  # redbeat's own keys: its schedule, its lock, the names of the entries of the code
    for key in client.scan_iter(match=_literally(conf.key_prefix) + "*", count=_PAGE):
        if not key.startswith(inside) and key != conf.lock_key and client.type(key) == "hash":
            yield key


def _literally(prefix: str) -> str:
    return "".join(f"\\{character}" if character in "*?[]\\" else character for character in prefix)


def _take(source_jobs: SourceJobs, entry_class: Any, app: Any, conf: Any, key: str, static: set[str]) -> None:
    name = job_name_of(key[len(conf.key_prefix) :])
    try:
        entry = entry_class.from_key(key, app=app)
    except Exception as error:  # whatever the decoding of a text that somebody wrote raises
        source_jobs.leave_out(name, f"redbeat cannot read it: {type(error).__name__}: {error}")
        return
    last = utc(entry.last_run_at)  # or when it was made, and then it counts from there
    run = None if last is None else StockRun(last, bool(entry.total_run_count))
    if source_jobs.belongs_to_code(name, run, entry.enabled):
        return
    if name in static:
        source_jobs.leave_out(name, "it left the beat_schedule; redbeat would drop it, too")
        return
    try:
        source_jobs.jobs.append(_arrival(name, entry, run))
    except FieldError as error:
        source_jobs.leave_out(name, str(error))


def _arrival(name: str, entry: Any, run: StockRun | None) -> ImportedJob:
    schedule = from_celery(entry.schedule)
    if schedule is None:
        what = type(entry.schedule).__name__
        raise FieldError("schedule", entry.schedule, f"a schedule of the class {what} cannot be written as text")
    fields = {
        "task": entry.task,
        "schedule": str(schedule),
        "timezone": zone_of(entry.schedule),
        "args": list(entry.args or ()),
        "kwargs": dict(entry.kwargs or {}),
        "options": dict(entry.options or {}),
        "enabled": bool(entry.enabled),
    }
    reason = None if entry.enabled else "disabled in redbeat"
    if run is None:  # due at once, as in redbeat
        return ImportedJob(name, fields, next_run_time=utc(entry.due_at), disabled_reason=reason)
    return ImportedJob(name, fields, run.last_run_at if run.has_run else None, run.last_run_at, disabled_reason=reason)
