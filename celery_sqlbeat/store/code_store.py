"""Brings a `beat_schedule` into the table: registers its release, lets the newest living one win, writes what changed.

Decides nothing about jobs: which rows are added, changed or left is the plan's, made between reading and writing.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

from celery_sqlbeat.model import LEFT_THE_CODE, CodeChange, CodeChanges, CodeRow
from celery_sqlbeat.store.database import Database
from celery_sqlbeat.store.protocol import CodePlans, Imported, NewestRelease
from celery_sqlbeat.store.session import Row, Session

_BATCH = 1000  # rows of one statement
_TICK = timedelta(microseconds=1)

T = TypeVar("T")


class _Seen(NamedTuple):
    """The releases of one owner, as `read_releases` sums them up."""

    now: datetime
    own_seen_at: datetime | None
    newest_seen_at: datetime | None
    live_release: str | None
    live_seen_at: datetime | None
    imported_release: str | None
    imported_at: datetime | None

    def first_seen_at(self) -> datetime:
        """When our release was first seen; a new one is later than all others, even if the clock stepped back."""
        return self.own_seen_at or _later(self.now, self.newest_seen_at)

    def winner(self, release: str) -> str:
        """The newest release that has a live beat; we are alive."""
        if self.live_release is None or self.live_seen_at is None or self.live_seen_at <= self.first_seen_at():
            return release
        return self.live_release


class SqlCodeStore:
    """The CodeStore of one namespace in a SQL database."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace

    def newest_release(self, owner: str, release: str, live_seconds: float) -> NewestRelease:
        scope = {"namespace": self._namespace, "code_owner": owner, "code_release": release}
        seen = _Seen._make(self._database.read("read_releases", live_seconds=live_seconds, **scope)[0])
        return NewestRelease(seen.winner(release), seen.imported_release)

    def code_rows(self, owner: str) -> list[CodeRow]:
        rows = self._database.read("read_code_jobs", namespace=self._namespace, code_owner=owner)
        return [CodeRow._make(row) for row in rows]

    def import_code(self, owner: str, release: str, plan: CodePlans, live_seconds: float) -> Imported:
        mine = {"namespace": self._namespace, "code_owner": owner}
        scope = {**mine, "code_release": release}

        def work(session: Session) -> Imported:
            session.fetch("lock_releases", **mine)
            seen = _Seen._make(session.fetch("read_releases", live_seconds=live_seconds, **scope)[0])
            if seen.own_seen_at is None:
                session.fetch("insert_release", first_seen_at=seen.first_seen_at(), **scope)
            winner = seen.winner(release)
            if winner != release:
                return Imported(winner, [], [], [], {})
            rows = [CodeRow._make(row) for row in session.fetch("read_code_jobs", **mine)]
            done = _write(session, plan(seen.now, rows), scope)
            if seen.imported_release != release:
                session.fetch("note_import", imported_at=_later(seen.now, seen.imported_at), **scope)
            if done.added or done.changed or done.left:
                session.fetch("bump_changes", namespace=self._namespace)
            return done

        return self._database.write(work)


def _write(session: Session, plan: CodeChanges, scope: dict[str, str]) -> Imported:
    mine = {key: scope[key] for key in ("namespace", "code_owner")}
    added: set[str] = set()
    for additions in _batches(plan.additions):
        new = [(a.job_id, *a.definition, a.next_run_time, a.last_run_time) for a in additions]
        added |= {row[0] for row in session.fetch("insert_code_jobs", new, **scope)}
    changed: set[str] = set()
    for changes in _batches(sorted(plan.changes, key=_lock_order)):
        changed |= _ids(
            session.fetch("update_code_jobs", [_changed_row(c) for c in changes], reason=LEFT_THE_CODE, **scope)
        )
    left: set[str] = set()
    for rows in _batches(sorted(plan.departures, key=_run_order)):
        left |= _ids(session.fetch("leave_code_jobs", [(row.job_id,) for row in rows], reason=LEFT_THE_CODE, **mine))
    kept: dict[str, str | None] = {}
    for names in _batches([a.definition.job_name for a in plan.additions if a.definition.job_name not in added]):
        kept.update(session.fetch("read_code_owners", [(name,) for name in names], namespace=scope["namespace"]))
    return Imported(
        scope["code_release"],
        [a.definition.job_name for a in plan.additions if a.definition.job_name in added],
        [c.row.job_name for c in plan.changes if c.row.job_id in changed],
        [row.job_name for row in plan.departures if row.job_id in left],
        kept,
    )


def _changed_row(change: CodeChange) -> tuple[object, ...]:
    _, *definition = change.definition
    return (change.row.job_id, *definition, int(change.reschedule), change.next_run_time)


def _lock_order(change: CodeChange) -> tuple[bool, str, str]:
    return _run_order(change.row)


def _run_order(row: CodeRow) -> tuple[bool, str, str]:
    """By run, as every statement locks, so that no two of them wait for each other."""
    return row.run_id is None, row.run_id or "", row.job_id


def _ids(found: list[Row]) -> set[str]:
    return {row[0] for row in found}


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), _BATCH):
        yield items[first : first + _BATCH]


def _later(now: datetime, other: datetime | None) -> datetime:
    return now if other is None or other < now else other + _TICK
