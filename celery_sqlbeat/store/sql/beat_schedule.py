"""Bring a `beat_schedule` into the table; the newest living release with an entry defines it.

Decides nothing about jobs: which rows are added, changed or left is the plan's, made between
reading and writing.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, TypeVar

from celery_sqlbeat.errors import RowRefused
from celery_sqlbeat.model import LEFT_THE_CODE, Beside, CodeChange, CodeChanges, CodeRow, LivingRelease
from celery_sqlbeat.store.beat_protocol import CodePlans, CodeTally, Imported, NewestRelease
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.faults import in_halves
from celery_sqlbeat.store.sql.session import Row, Session

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
    other_beats: int
    jobs: int
    left: int

    def first_seen_at(self) -> datetime:
        """Return when our release was first seen.

        A new one is later than all others, even if the clock stepped back.
        """
        return self.own_seen_at or _later(self.now, self.newest_seen_at)

    def winner(self, release: str) -> str:
        """Return the newest release that has a live beat; this beat counts as alive."""
        if self.live_release is None or self.live_seen_at is None or self.live_seen_at <= self.first_seen_at():
            return release
        return self.live_release

    def beside(self, owner: str, release: str, living: Sequence[LivingRelease]) -> Beside:
        """Return what other living releases of this owner have in their code."""
        others = [other for other in living if other.owner == owner and other.release != release]
        since = self.first_seen_at()
        newer = [other for other in others if other.first_seen_at is not None and other.first_seen_at > since]
        return Beside(_names(newer), _names(others))


class SqlCodeStore:
    """The CodeStore of one namespace in a SQL database."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace

    def newest_release(self, owner: str, release: str, live_seconds: float) -> NewestRelease:
        """Return the winning release, if the asking beat is alive.

        A release that nobody has seen yet would be the newest.
        """
        scope = {"namespace": self._namespace, "code_owner": owner, "code_release": release, "reason": LEFT_THE_CODE}
        seen = _Seen._make(self._database.read("read_releases", live_seconds=live_seconds, **scope)[0])
        tally = CodeTally(seen.jobs, seen.left)
        return NewestRelease(seen.winner(release), seen.imported_release, tally, seen.other_beats > 0)

    def living(self, live_seconds: float) -> list[LivingRelease]:
        """Return what the living beats of the namespace have in their code, of all apps."""
        return _living(self._database.read("read_living", namespace=self._namespace, live_seconds=live_seconds))

    def jobs_of(self, tasks: Iterable[str], page_size: int) -> dict[str, str]:
        """Return the tasks of enabled jobs that have one of these, by job name; at most a page."""
        rows = [(task,) for task in tasks]
        scope = {"namespace": self._namespace, "page_size": page_size}
        return dict(self._database.read("read_jobs_of_tasks", rows, **scope)) if rows else {}

    def announce(self) -> None:
        """Let the other beats notice that something has changed."""
        self._database.fetch("bump_changes", namespace=self._namespace)

    def owners(self) -> dict[str, int]:
        """Return how many enabled jobs each app has."""
        return {owner: int(jobs) for owner, jobs in self._database.read("read_owners", namespace=self._namespace)}

    def code_rows(self, owner: str) -> list[CodeRow]:
        """Return the jobs of an owner, as they stand."""
        rows = self._database.read("read_code_jobs", namespace=self._namespace, code_owner=owner)
        return [CodeRow._make(row) for row in rows]

    def import_code(
        self, owner: str, release: str, plan: CodePlans, live_seconds: float, entries: Mapping[str, str] | None = None
    ) -> Imported:
        """Register a release with the digests of its entries, and write what `plan` decides."""
        mine = {"namespace": self._namespace, "code_owner": owner}
        scope = {**mine, "code_release": release}
        seeing = {**scope, "live_seconds": live_seconds, "reason": LEFT_THE_CODE}
        told = None if entries is None else json.dumps(entries, sort_keys=True)
        planned: list[str] = []

        def work(session: Session, among: Collection[str] | None = None, without: Collection[str] = ()) -> Imported:
            session.fetch("lock_releases", **mine)
            seen = _Seen._make(session.fetch("read_releases", **seeing)[0])
            if seen.own_seen_at is None:
                session.fetch("insert_release", first_seen_at=seen.first_seen_at(), entries=told, **scope)
            elif told is not None:
                session.fetch("note_entries", entries=told, **scope)
            beside = Beside()
            if seen.other_beats:
                living = _living(session.fetch("read_living", namespace=self._namespace, live_seconds=live_seconds))
                beside = seen.beside(owner, release, living)
            winner = seen.winner(release)
            if beside.newer is None:
                return Imported(winner, [], [], [], {}, beside=beside, tally=CodeTally(seen.jobs, seen.left))
            rows = [CodeRow._make(row) for row in session.fetch("read_code_jobs", **mine)]
            changes = plan(seen.now, rows, beside)
            planned[:] = _planned(changes)
            done = _write(session, _without(changes, set(planned) - {*among} if among is not None else without), scope)
            if winner == release != seen.imported_release and among is None:
                session.fetch("note_import", imported_at=_later(seen.now, seen.imported_at), **scope)
            if done.added or done.changed or done.left:
                session.fetch("bump_changes", namespace=self._namespace)
                seen = _Seen._make(session.fetch("read_releases", **seeing)[0])
            return done._replace(winner=winner, beside=beside, tally=CodeTally(seen.jobs, seen.left))

        try:
            return self._database.write(work)
        except RowRefused as error:
            if not planned:
                raise
            return self._import_in_halves(work, tuple(planned), error)

    def _import_in_halves(self, work: Callable[..., Imported], names: Sequence[str], error: RowRefused) -> Imported:
        """Write the entries that the database takes, then record the import without the others."""
        parts: list[Imported] = []
        refused: dict[str, str] = {}

        def write(part: Sequence[str]) -> None:
            parts.append(self._database.write(partial(work, among=part)))

        in_halves(names, write, lambda name, why: refused.update({name: str(why)}), error)
        done = self._database.write(partial(work, without=refused))
        parts.append(done)
        return done._replace(
            added=[name for part in parts for name in part.added],
            changed=[name for part in parts for name in part.changed],
            left=[name for part in parts for name in part.left],
            refused=refused,
        )

    def adopt(self, owner: str, former_owner: str, names: Collection[str] | None = None) -> list[str]:
        """Give an app's jobs, or those of these names, to another app; return their names."""
        mine = {"namespace": self._namespace, "code_owner": former_owner}

        def work(session: Session) -> list[str]:
            session.fetch("lock_releases", **mine)
            jobs = (CodeRow._make(row) for row in session.fetch("read_code_jobs", **mine))
            rows = sorted((row for row in jobs if names is None or row.job_name in names), key=_run_order)
            adopted: list[str] = []
            for batch in _batches(rows):
                ids = [(row.job_id,) for row in batch]
                adopted += [
                    row[0] for row in session.fetch("adopt_jobs", ids, code_owner=owner, former_owner=former_owner)
                ]
            session.fetch("bump_changes", namespace=self._namespace)
            return sorted(adopted)

        return self._database.write(work)


def _planned(plan: CodeChanges) -> list[str]:
    """Return the names of the jobs that a plan writes."""
    added = [a.definition.job_name for a in plan.additions]
    return [*added, *(c.row.job_name for c in plan.changes), *(row.job_name for row in plan.departures)]


def _without(plan: CodeChanges, names: Collection[str]) -> CodeChanges:
    """Return the plan without these jobs."""
    return plan._replace(
        additions=[a for a in plan.additions if a.definition.job_name not in names],
        changes=[c for c in plan.changes if c.row.job_name not in names],
        departures=[row for row in plan.departures if row.job_name not in names],
    )


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
        plan.spared,
    )


def _changed_row(change: CodeChange) -> tuple[object, ...]:
    _, *definition = change.definition
    return (change.row.job_id, *definition, int(change.reschedule), change.next_run_time)


def _lock_order(change: CodeChange) -> tuple[bool, str, str]:
    return _run_order(change.row)


def _run_order(row: CodeRow) -> tuple[bool, str, str]:
    """Return the key of an order by runs, in which every statement locks."""
    return row.run_id is None, row.run_id or "", row.job_id


def _ids(rows: list[Row]) -> set[str]:
    return {row[0] for row in rows}


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), _BATCH):
        yield items[first : first + _BATCH]


def _later(now: datetime, other: datetime | None) -> datetime:
    return now if other is None or other < now else other + _TICK


def _living(rows: list[Row]) -> list[LivingRelease]:
    return [LivingRelease(owner, release, beat, at, _entries(text)) for owner, release, beat, at, text in rows]


def _entries(text: str | None) -> dict[str, str] | None:
    """Read the entries of a release; None where it has none that can be read."""
    try:
        told = json.loads(text) if text else None
    except ValueError:
        return None
    return {str(name): str(mark) for name, mark in told.items()} if isinstance(told, dict) else None


def _names(releases: Sequence[LivingRelease]) -> frozenset[str] | None:
    told = [release.entries for release in releases]
    return None if None in told else frozenset(name for entries in told if entries for name in entries)
