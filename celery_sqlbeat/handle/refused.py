"""Jobs whose messages nobody takes: told by the beats that could not send them, and seen to be still so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from celery_sqlbeat.beat.refusals import KEY, TOLD_SECONDS
from celery_sqlbeat.details import read
from celery_sqlbeat.model import JobRecord, SeenNode
from celery_sqlbeat.store import Store


def refused_jobs(store: Store, nodes: Sequence[SeenNode]) -> dict[str, str]:
    """What is wrong with each of them, by name. One that was sent since then is none."""
    told = _told(nodes)
    rows = store.for_admin().jobs(told) if told else {}
    return {
        name: f"job {name} could not be published {times} times in a row: {error}"
        for name, (times, error, at) in sorted(told.items())
        if (row := rows.get(name)) is not None and not _went_on(row, at)
    }


def _told(nodes: Sequence[SeenNode]) -> dict[str, tuple[int, str, datetime]]:
    found: dict[str, tuple[int, str, datetime]] = {}
    for node in nodes:
        if node.kind != "beat" or node.stopped_at is not None:
            continue
        for name, times, error, seconds_ago in _of(node):
            at = node.heartbeat_at - timedelta(seconds=seconds_ago)
            if (node.now - at).total_seconds() < TOLD_SECONDS and (name not in found or found[name][2] < at):
                found[name] = times, error, at
    return found


def _of(node: SeenNode) -> Iterator[tuple[str, int, str, float]]:
    """What a beat tells; of another release, whatever is not as expected says nothing."""
    told = read(node.details).get(KEY)
    for name, one in told.items() if isinstance(told, dict) else ():
        with suppress(KeyError, TypeError, ValueError, OverflowError):
            yield str(name), int(one["times"]), str(one["error"]), min(float(one["seconds_ago"]), TOLD_SECONDS)


def _went_on(row: JobRecord, at: datetime) -> bool:
    """Whether the job was sent after that, by whatever beat, or nobody wants it to be."""
    sent = [each for each in (row.last_run_time, row.published_at) if isinstance(each, datetime)]
    return not row.enabled or row.quarantine is not None or any(each > at for each in sent)
