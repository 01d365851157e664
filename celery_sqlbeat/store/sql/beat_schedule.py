"""Bring a `beat_schedule` into the table; the newest living release with an entry defines it.

Decides nothing about jobs: which rows are added, changed or left is planned between a plain read
and a write that finds each row as it was read.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

from celery_sqlbeat.errors import RowRefused
from celery_sqlbeat.model import (
    LEFT_THE_CODE,
    Beside,
    CodeChange,
    CodeChanges,
    CodeImport,
    CodeRow,
    CodeState,
    LivingRelease,
)
from celery_sqlbeat.store.records import Imported, NewestRelease
from celery_sqlbeat.store.releases import ReleasesSeen, read_entries, tell_entries
from celery_sqlbeat.store.sql.engine import Part
from celery_sqlbeat.store.sql.faults import in_halves
from celery_sqlbeat.store.sql.session import Row, Session

_BATCH = 1000  # rows of one statement

T = TypeVar("T")


class Schedules(Part):
    """The verbs about the `beat_schedule` of apps."""

    def newest_release(self, owner: str, release: str, live_seconds: float) -> NewestRelease:
        """Return the winning release, if the asking beat is alive.

        A release that nobody has seen yet would be the newest.
        """
        scope = {"namespace": self.namespace, "code_owner": owner, "code_release": release, "reason": LEFT_THE_CODE}
        row = self.database.read("read_releases", live_seconds=live_seconds, **scope)[0]
        return ReleasesSeen._make(row).newest(release)

    def living(self, live_seconds: float) -> list[LivingRelease]:
        """Return what the living beats of the namespace have in their code, of all apps."""
        return _living(self.database.read("read_living", namespace=self.namespace, live_seconds=live_seconds))

    def code_state(self, owner: str, release: str, live_seconds: float) -> CodeState:
        """Return what an import of this release is planned from."""
        seen, beside = self._facts(self.database.read, owner, release, live_seconds)
        rows = self.database.read("read_code_jobs", namespace=self.namespace, code_owner=owner)
        return CodeState(seen.now, [CodeRow._make(row) for row in rows], beside)

    def import_code(self, batch: CodeImport) -> Imported:
        """Register a release with its entries, and write rows that are as they were read."""
        try:
            return self._write(batch)
        except RowRefused as error:
            if batch.changes is None or not (names := batch.changes.names()):
                raise
            return self._write_in_halves(batch, batch.changes, names, error)

    def _write(self, batch: CodeImport, is_whole: bool = True) -> Imported:
        """Write a batch in one transaction. `is_whole`: the release is imported with it."""
        owner, release = batch.owner, batch.release
        mine = {"namespace": self.namespace, "code_owner": owner}
        scope = {**mine, "code_release": release}
        told = None if batch.entries is None else tell_entries(batch.entries)
        attempted: list[Imported] = []

        def work(session: Session) -> Imported:
            session.fetch("lock_releases", **mine)
            seen, beside = self._facts(session.fetch, owner, release, batch.live_seconds)
            winner = seen.winner(release)
            done = Imported(winner, [], [], [], {}, beside=beside, tally=seen.tally)
            if beside != batch.beside:
                return done._replace(is_stale=True)
            if seen.own_seen_at is None:
                session.fetch("insert_release", first_seen_at=seen.first_seen_at(), entries=told, **scope)
            elif told is not None:
                session.fetch("note_entries", entries=told, **scope)
            if batch.changes is None:
                if batch.announce:
                    session.fetch("bump_changes", namespace=self.namespace)
                return done
            done = _write(session, batch.changes, done, scope)
            if winner == release != seen.imported_release and is_whole and not done.is_stale:
                session.fetch("note_import", imported_at=seen.imports_at(), **scope)
            if batch.announce or done.added or done.changed or done.left:
                session.fetch("bump_changes", namespace=self.namespace)
                seen, _ = self._facts(session.fetch, owner, release, batch.live_seconds)
            attempted[:] = [done._replace(tally=seen.tally)]
            return attempted[0]

        def resolve_commit(session: Session) -> Imported | None:
            is_there = batch.changes is not None and attempted and _was_committed(session, batch.changes, mine)
            return attempted[0] if is_there else None

        return self.database.write(work, resolve_commit)

    def _write_in_halves(
        self, batch: CodeImport, changes: CodeChanges, names: Sequence[str], error: RowRefused
    ) -> Imported:
        """Write the entries that the database takes, then record the import without the others."""
        parts: list[Imported] = []
        refused: dict[str, str] = {}

        def write(part: Sequence[str]) -> None:
            parts.append(self._write(batch._replace(changes=changes.among(set(part))), is_whole=False))

        in_halves(names, write, lambda name, why: refused.update({name: str(why)}), error)
        is_stale = any(part.is_stale for part in parts)
        done = self._write(batch._replace(changes=changes.among(())), is_whole=not is_stale)
        return done._replace(
            added=[name for part in parts for name in part.added],
            changed=[name for part in parts for name in part.changed],
            left=[name for part in parts for name in part.left],
            kept={name: owner for part in parts for name, owner in part.kept.items()},
            refused=refused,
            is_stale=is_stale or done.is_stale,
        )

    def _facts(
        self, fetch: Callable[..., list[Row]], owner: str, release: str, live_seconds: float
    ) -> tuple[ReleasesSeen, Beside]:
        """Read the releases of an owner, and what the others of them have in their code."""
        scope = {"namespace": self.namespace, "live_seconds": live_seconds}
        releases = {"code_owner": owner, "code_release": release, "reason": LEFT_THE_CODE}
        seen = ReleasesSeen._make(fetch("read_releases", **scope, **releases)[0])
        if not seen.other_beats:
            return seen, Beside()
        return seen, seen.beside(owner, release, _living(fetch("read_living", **scope)))

    def adopt(self, owner: str, former_owner: str, names: Collection[str] | None = None) -> list[str]:
        """Give an app's jobs, or those of these names, to another app; return their names."""
        mine = {"namespace": self.namespace, "code_owner": former_owner}

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
            session.fetch("bump_changes", namespace=self.namespace)
            return sorted(adopted)

        return self.database.write(work)


def _write(session: Session, plan: CodeChanges, done: Imported, scope: dict[str, str]) -> Imported:
    """Write the changes; `done` says what is known before."""
    owner = scope["code_owner"]
    mine = {"namespace": scope["namespace"], "code_owner": owner}
    added: set[str] = set()
    for additions in _batches(plan.additions):
        new = [(a.job_id, *a.definition, a.next_run_time, a.last_run_time) for a in additions]
        added |= _first(session.fetch("insert_code_jobs", new, **scope))
    changed: set[str] = set()
    for changes in _batches(sorted(plan.changes, key=_lock_order)):
        changed |= _first(
            session.fetch("update_code_jobs", [_changed_row(c) for c in changes], reason=LEFT_THE_CODE, **scope)
        )
    left: set[str] = set()
    for rows in _batches(sorted(plan.departures, key=_run_order)):
        going = [(row.job_id, row.version) for row in rows]
        left |= _first(session.fetch("leave_code_jobs", going, reason=LEFT_THE_CODE, **mine))
    there = [a.definition.job_name for a in plan.additions if a.definition.job_name not in added]
    owners: dict[str, str | None] = {}
    for names in _batches(there):
        owners.update(session.fetch("read_code_owners", [(name,) for name in names], namespace=scope["namespace"]))
    is_missed = len(changed) < len(plan.changes) or len(left) < len(plan.departures)
    return done._replace(
        added=[a.definition.job_name for a in plan.additions if a.definition.job_name in added],
        changed=[c.row.job_name for c in plan.changes if c.row.job_id in changed],
        left=[row.job_name for row in plan.departures if row.job_id in left],
        kept={name: whose for name, whose in owners.items() if whose != owner},
        spared=plan.spared,
        is_stale=is_missed or any(owners.get(name, owner) == owner for name in there),
    )


def _was_committed(session: Session, plan: CodeChanges, mine: dict[str, str]) -> bool:
    """Return whether one of the changes is there, and so all that were made with it."""
    rows = {row[0]: CodeRow._make(row) for row in session.fetch("read_code_jobs", **mine)}

    def is_next(was: CodeRow) -> bool:
        return was.job_id in rows and rows[was.job_id].version == was.version + 1

    return (
        any(a.job_id in rows for a in plan.additions)
        or any(is_next(c.row) and rows[c.row.job_id].says(c.definition) for c in plan.changes)
        or any(is_next(row) and rows[row.job_id].disabled_reason == LEFT_THE_CODE for row in plan.departures)
    )


def _changed_row(change: CodeChange) -> tuple[object, ...]:
    row = change.row
    return (row.job_id, *change.definition[1:], int(change.reschedule), change.next_run_time, row.version, row.fence)


def _lock_order(change: CodeChange) -> tuple[bool, str, str]:
    return _run_order(change.row)


def _run_order(row: CodeRow) -> tuple[bool, str, str]:
    """Return the key of an order by runs, in which every statement locks."""
    return row.run_id is None, row.run_id or "", row.job_id


def _first(rows: list[Row]) -> set[str]:
    return {row[0] for row in rows}


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), _BATCH):
        yield items[first : first + _BATCH]


def _living(rows: list[Row]) -> list[LivingRelease]:
    return [LivingRelease(owner, release, beat, at, read_entries(text)) for owner, release, beat, at, text in rows]
