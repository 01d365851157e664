"""Bring a `beat_schedule` into the jobs; the newest living release with an entry defines it.

Which jobs are added, changed or left is planned between a read and a write that finds each as it
was read. The row of an app changes with each registration and import, and every write of an import
compares it: so imports of one app come one after the other.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from celery_sqlbeat.model import (
    Beside,
    CodeAddition,
    CodeChange,
    CodeChanges,
    CodeImport,
    CodeRow,
    CodeState,
    LivingRelease,
)
from celery_sqlbeat.store.keyvalue.code_rows import Item, add, change, keys_of, leave, name_of
from celery_sqlbeat.store.keyvalue.nodes import beats_alive
from celery_sqlbeat.store.keyvalue.reading import read_rows
from celery_sqlbeat.store.keyvalue.rows import Change, Key, Place, Row, Scan
from celery_sqlbeat.store.keyvalue.tables import (
    JOB,
    NAME,
    OWNER,
    RELEASE,
    instant,
    left_index,
    micros,
    owned_index,
    record_of,
    release_id,
    seen,
)
from celery_sqlbeat.store.keyvalue.units import View, busy, carry_out, sure
from celery_sqlbeat.store.records import CodeTally, Imported, NewestRelease
from celery_sqlbeat.store.releases import ReleasesSeen, read_entries, tell_entries

_TRIES = 30  # of a registration while others register


class _Answer(Enum):
    DONE = "done"
    MISSED = "missed"  # the job is not as it was read
    OTHERS = "others"  # another import came in between


class _Facts(NamedTuple):
    """The releases of an app, as they were read."""

    seen: ReleasesSeen
    beside: Beside
    app: Row | None
    """The row of the app."""
    own: Row | None
    """The row of the release."""


class ReleaseRegister:
    """What a store is asked about the `beat_schedule` of apps."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def newest_release(self, owner: str, release: str, live_seconds: float) -> NewestRelease:
        """Return the winning release, if the asking beat is alive."""
        return self._facts(owner, release, live_seconds).seen.newest(release)

    def living(self, live_seconds: float) -> list[LivingRelease]:
        """Return what the living beats of the namespace have in their code, of all apps."""
        return self._living(beats_alive(self._place, live_seconds)[1])

    def code_state(self, owner: str, release: str, live_seconds: float) -> CodeState:
        """Return what an import of this release is planned from."""
        facts = self._facts(owner, release, live_seconds)
        return CodeState(facts.seen.now, self._code_rows(owner), facts.beside)

    def import_code(self, batch: CodeImport) -> Imported:
        """Register a release with its entries, and write rows that are as they were read."""
        facts = self._registered(batch)
        winner = facts.seen.winner(batch.release)
        done = Imported(winner, [], [], [], {}, beside=facts.beside, tally=facts.seen.tally)
        if facts.beside != batch.beside:
            return done._replace(is_stale=True)
        if batch.changes is not None:
            done = self._write(batch, batch.changes, facts.app, done)
            if winner == batch.release != facts.seen.imported_release and not done.is_stale:
                done = done._replace(is_stale=not self._note_import(batch, facts))
        if done.added or done.changed or done.left:
            done = done._replace(tally=self._tally(batch.owner))
        elif batch.announce:
            self._place.write([Change({}, is_news=True)])
        return done

    def adopt(self, owner: str, former_owner: str, names: Collection[str] | None = None) -> list[str]:
        """Give an app's jobs, or those of these names, to another app; return their names."""
        rows = [row for row in self._code_rows(former_owner) if names is None or row.job_name in names]
        sure(carry_out(self._place, [owner], lambda _: [(OWNER, owner)], _know))

        def give(view: View, job: CodeRow) -> bool:
            row = view.row(JOB, job.job_id)
            if row is None or row.get("code_owner") != former_owner:
                return False
            row.update(code_owner=owner, version=row["version"] + 1, updated_at=view.now)
            view.is_news = True
            return True

        given = sure(carry_out(self._place, rows, lambda job: [(JOB, job.job_id)], give))
        return sorted(row.job_name for row, is_given in zip(rows, given, strict=True) if is_given)

    def _facts(self, owner: str, release: str, live_seconds: float) -> _Facts:
        now, beats = beats_alive(self._place, live_seconds)
        living = self._living(beats)
        own_key, app_key = (RELEASE, release_id(owner, release)), (OWNER, owner)
        counts = [Scan(index(owner), only_count=True) for index in (owned_index, left_index)]
        read = self._place.read([own_key, app_key], counts)
        app, own = read.rows[app_key].row, read.rows[own_key].row
        others = [
            beat
            for beat in beats.values()
            if beat.get("code_owner") not in (None, owner) or beat.get("code_release") not in (None, release)
        ]
        live = [(one.first_seen_at, one.release) for one in living if one.owner == owner and one.first_seen_at]
        newest = max(live, default=None)
        facts = ReleasesSeen(
            now=instant(now),
            own_seen_at=seen((own or {}).get("first_seen_at")),
            newest_seen_at=seen((app or {}).get("newest_seen_at")),
            live_release=None if newest is None else newest[1],
            live_seen_at=None if newest is None else newest[0],
            imported_release=(app or {}).get("imported_release"),
            imported_at=seen((app or {}).get("imported_at")),
            other_beats=len(others),
            jobs=read.scanned[0].total,
            left=read.scanned[1].total,
        )
        return _Facts(facts, facts.beside(owner, release, living), app, own)

    def _living(self, beats: Mapping[str, Row]) -> list[LivingRelease]:
        """Return the releases of these beats, each with the first of its beats."""
        first: dict[tuple[str, str], str] = {}
        for beat, row in sorted(beats.items()):
            if row.get("code_owner") is not None and row.get("code_release") is not None:
                first.setdefault((row["code_owner"], row["code_release"]), beat)
        rows = read_rows(self._place, RELEASE, [release_id(*release) for release in first])
        living = []
        for (owner, release), beat in sorted(first.items()):
            row = rows.get(release_id(owner, release), {})
            entries = read_entries(row.get("entries"))
            living.append(LivingRelease(owner, release, beat, seen(row.get("first_seen_at")), entries))
        return living

    def _code_rows(self, owner: str) -> list[CodeRow]:
        """Return the jobs of an owner, as they stand."""
        (owned,) = self._place.read(scans=[Scan(owned_index(owner))]).scanned
        rows = read_rows(self._place, JOB, [job_id for job_id, _ in owned.ids])
        return [
            record_of(CodeRow, row, {"job_id": job_id, "claimed_at": _claimed_at(row)})
            for job_id, row in rows.items()
            if row.get("code_owner") == owner
        ]

    def _tally(self, owner: str) -> CodeTally:
        counts = [Scan(index(owner), only_count=True) for index in (owned_index, left_index)]
        return CodeTally(*(scanned.total for scanned in self._place.read(scans=counts).scanned))

    def _registered(self, batch: CodeImport) -> _Facts:
        """Return what is known of an app, with this release registered unless others have come."""
        told = None if batch.entries is None else tell_entries(batch.entries)
        for _ in range(_TRIES):
            facts = self._facts(batch.owner, batch.release, batch.live_seconds)
            if facts.beside != batch.beside or (facts.own and told in (None, facts.own.get("entries"))):
                return facts
            app = self._register(batch, told, facts)
            if app is not None:
                own_seen_at = facts.seen.first_seen_at()
                return facts._replace(app=app, seen=facts.seen._replace(own_seen_at=own_seen_at))
        raise busy()

    def _register(self, batch: CodeImport, told: str | None, facts: _Facts) -> Row | None:
        """Write a release; return the row of its app, or None where that has changed meanwhile."""
        at = micros(facts.seen.first_seen_at())
        row = {"code_owner": batch.owner, "code_release": batch.release, "first_seen_at": at, "entries": told}
        row_id = release_id(batch.owner, batch.release)

        def register(view: View, _: CodeImport) -> Row | None:
            if view.row(OWNER, batch.owner) != facts.app:
                return None
            app = _know(view, batch.owner)
            app.update(newest_seen_at=max(at, app.get("newest_seen_at", at)), changes=app["changes"] + 1)
            view.row(RELEASE, row_id)
            view.add(RELEASE, row_id, row)
            return dict(app)

        return sure(carry_out(self._place, [batch], lambda _: [(OWNER, batch.owner), (RELEASE, row_id)], register))[0]

    def _write(self, batch: CodeImport, plan: CodeChanges, app: Row | None, done: Imported) -> Imported:
        """Write the changes; `done` says what is known before."""

        def write(view: View, item: Item) -> _Answer:
            if view.row(OWNER, batch.owner) != app:
                return _Answer.OTHERS
            if isinstance(item, CodeAddition):
                return _as_answer(add(view, item, batch))
            if isinstance(item, CodeChange):
                return _as_answer(change(view, item, batch.release))
            return _as_answer(leave(view, item))

        def keys(item: Item) -> list[Key]:
            return [(OWNER, batch.owner), *keys_of(item)]

        items: list[Item] = [*plan.additions, *plan.changes, *plan.departures]
        answers = dict(zip(map(name_of, items), carry_out(self._place, items, keys, write), strict=True))
        done_names = {name for name, answer in answers.items() if answer is _Answer.DONE}
        there = [a.definition.job_name for a in plan.additions if answers[a.definition.job_name] is _Answer.MISSED]
        owners = self._owners_of(there)
        missed = [name for name in answers if name not in done_names and name not in there]
        return done._replace(
            added=[name for a in plan.additions if (name := name_of(a)) in done_names],
            changed=[name for c in plan.changes if (name := name_of(c)) in done_names],
            left=[row.job_name for row in plan.departures if row.job_name in done_names],
            kept={name: whose for name, whose in owners.items() if whose != batch.owner},
            spared=plan.spared,
            is_stale=bool(missed) or any(owners.get(name, batch.owner) == batch.owner for name in there),
        )

    def _owners_of(self, names: Sequence[str]) -> dict[str, str | None]:
        known = read_rows(self._place, NAME, names)
        jobs = read_rows(self._place, JOB, [row["job_id"] for row in known.values() if row.get("job_id")])
        return {name: jobs[row["job_id"]].get("code_owner") for name, row in known.items() if row.get("job_id") in jobs}

    def _note_import(self, batch: CodeImport, facts: _Facts) -> bool:
        """Record that all of a release is imported, unless another one came in between."""

        def note(view: View, _: CodeImport) -> bool:
            app = view.row(OWNER, batch.owner)
            if app is None or app != facts.app:
                return False
            at = micros(facts.seen.imports_at())
            app.update(imported_release=batch.release, imported_at=at, changes=app["changes"] + 1)
            return True

        return sure(carry_out(self._place, [batch], lambda _: [(OWNER, batch.owner)], note))[0]


def _know(view: View, owner: str) -> Row:
    """Return the row of an app, which is added where it is not there."""
    row = view.row(OWNER, owner)
    if row is None:
        row = {"changes": 0}
        view.add(OWNER, owner, row)
    return row


def _as_answer(is_done: bool) -> _Answer:
    return _Answer.DONE if is_done else _Answer.MISSED


def _claimed_at(row: Row) -> object:
    return None if row.get("locked_by") is None else seen(row.get("claimed_at"))
