"""`--from redbeat`: the entries that redbeat keeps in Redis, read by redbeat itself, where the app's settings say."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from celery_sqlbeat.beat.code import StockRun
from celery_sqlbeat.beat.entries import job_name_of
from celery_sqlbeat.config import Settings
from celery_sqlbeat.errors import FieldError, SourceUnreadable
from celery_sqlbeat.schedule.stock import from_celery, zone_of
from celery_sqlbeat.transfer.arrivals import Arrival, Shop, utc
from celery_sqlbeat.transfer.from_code import from_beat_schedule

_PAGE = 500  # keys of one look, so that a large Redis is not held up


def from_redbeat(app: Any, settings: Settings) -> Shop:
    """All entries of redbeat, with their last runs; nothing in Redis is changed."""
    try:
        import redis
        from redbeat import schedulers
    except ImportError as error:
        raise SourceUnreadable(f"{error.name} is not installed here: run this where the old beat ran") from error
    shop = from_beat_schedule(app, settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its own, about settings that it still reads
        conf = schedulers.ensure_conf(app)
        try:
            client = schedulers.get_redis(app)
            keys = sorted(_keys(client, conf))
            static = {job_name_of(name) for name in client.smembers(conf.statics_key)}
            for key in keys:
                _take(shop, schedulers.RedBeatSchedulerEntry, app, conf, key, static)
        except redis.exceptions.RedisError as error:
            raise SourceUnreadable(f"Redis does not answer: {' '.join(str(error).split())}") from error
    return shop


def _keys(client: Any, conf: Any) -> Iterator[str]:
    """The keys of entries. All of them, since a disabled one need not be in redbeat's own schedule."""
    inside = conf.key_prefix + ":"  # redbeat's own keys: its schedule, its lock, the names of the entries of the code
    for key in client.scan_iter(match=_literally(conf.key_prefix) + "*", count=_PAGE):
        if not key.startswith(inside) and key != conf.lock_key and client.type(key) == "hash":
            yield key


def _literally(prefix: str) -> str:
    return "".join(f"\\{character}" if character in "*?[]\\" else character for character in prefix)


def _take(shop: Shop, entry_class: Any, app: Any, conf: Any, key: str, static: set[str]) -> None:
    name = job_name_of(key[len(conf.key_prefix) :])
    try:
        entry = entry_class.from_key(key, app=app)
    except Exception as error:  # whatever the decoding of a text that somebody wrote raises
        shop.leave(name, f"redbeat cannot read it: {type(error).__name__}: {error}")
        return
    last = utc(entry.last_run_at)  # or when it was made, and then it counts from there
    run = None if last is None else StockRun(last, bool(entry.total_run_count))
    if shop.is_of_the_code(name, run, entry.enabled):
        return
    if name in static:
        shop.leave(name, "it left the beat_schedule; redbeat would drop it, too")
        return
    try:
        shop.arrivals.append(_arrival(name, entry, run))
    except FieldError as error:
        shop.leave(name, str(error))


def _arrival(name: str, entry: Any, run: StockRun | None) -> Arrival:
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
        return Arrival(name, fields, next_run_time=utc(entry.due_at), disabled_reason=reason)
    return Arrival(name, fields, run.last_run_at if run.has_run else None, run.last_run_at, disabled_reason=reason)
