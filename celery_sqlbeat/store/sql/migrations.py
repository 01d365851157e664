"""Create and upgrade the schema by numbered scripts, forward only, each guarded by its checksum.

After a restore, raise every fence by an epoch: the database has forgotten claims whose messages may
still be about.
"""

import hashlib
import re
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache
from typing import NamedTuple

import celery_sqlbeat
from celery_sqlbeat.errors import MigrationChanged, ReleaseTooOld, SchemaError, TablesMissing
from celery_sqlbeat.store.records import FIRST_ID, Schema
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.session import Row, Session, sql_folder

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(NamedTuple):
    """One script."""

    number: int
    name: str
    text: str
    checksum: str


@cache  # a handful of databases
def migrations(database: str) -> tuple[Migration, ...]:
    """Read the migrations for a database, in order."""
    files = []
    for path in sorted((sql_folder(database) / "migrations").glob("*.sql")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise SchemaError(f"{path.name} is not named like 0001_what_it_does.sql")
        text = path.read_text(encoding="utf-8").replace("\r\n", "\n")
        files.append(Migration(int(match[1]), match[2], text, hashlib.sha256(text.encode()).hexdigest()))
    if [migration.number for migration in files] != list(range(1, len(files) + 1)):
        raise SchemaError(f"the migrations for {database} are not numbered without a hole: install the package again")
    return tuple(files)


def creation_script(database: str) -> str:
    """Return `sql/*/create.sql`: what `migrate` runs on an empty database.

    It records what it applied, so that a later `migrate` goes on from there.
    """
    return (sql_folder(database) / "create.sql").read_text(encoding="utf-8").rstrip()


def migrate(database: Database, progress: Callable[[str], None] = lambda _: None) -> list[str]:
    """Bring the schema up to this version; returns the names of what was applied.

    Safe while others do the same.
    """
    known = migrations(database.dialect.name)
    applied: list[str] = []
    database.make_place()

    def next_migration(session: Session) -> Migration | None:
        session.migration_lock()
        session.fetch("create_migrations_table")
        missing = _missing(session, known)
        if not missing:
            _version(session.fetch, known)
            return None
        migration = missing[0]
        session.script(migration.text)
        session.fetch("note_migration", number=migration.number, name=migration.name, checksum=migration.checksum)
        return migration

    # One transaction each: what was applied stays applied if a later migration fails.
    while (migration := database.write(next_migration)) is not None:
        applied.append(f"{migration.number:04d}_{migration.name}")
        progress(f"applied {applied[-1]} ({migration.number} of {len(known)})")
    return applied


def check_schema(database: Database) -> Schema:
    """Return the version of the schema, or raise a SchemaError where this release cannot use it.

    A newer schema names the oldest release that may use it.
    """
    known = migrations(database.dialect.name)
    if not database.read("read_migrations_table"):
        raise TablesMissing
    applied = {row[0]: row[1] for row in database.read("read_migrations")}
    _compare(applied, known)
    if any(migration.number not in applied for migration in known):
        raise SchemaError(
            f"the schema is at version {max(applied, default=0)}, this package needs {len(known)}: "
            "run celery -A app sqlbeat init"
        )
    store_id, epoch = database.read("read_store")[0]
    return _version(database.read, known)._replace(store_id=str(store_id), epoch=int(epoch))


def _version(read: Callable[[str], list[Row]], known: tuple[Migration, ...]) -> Schema:
    """Return which schema is there; ReleaseTooOld where it has left this release behind."""
    version = max((int(row[0]) for row in read("read_migrations")), default=0)
    if version <= len(known):
        return Schema(version, len(known))
    oldest, own = str(read("read_oldest_release")[0][0]), celery_sqlbeat.__version__
    if _numbers(own) < _numbers(oldest):
        raise ReleaseTooOld(version, own, oldest)
    return Schema(version, len(known), oldest)


def _numbers(release: str) -> tuple[int, ...]:
    """Read a release as its numbers; a pre-release counts as its final release."""
    return tuple(int(number) for number in re.findall(r"\d+", release)[:3])


def _missing(session: Session, known: tuple[Migration, ...]) -> list[Migration]:
    applied = {row[0]: row[1] for row in session.fetch("read_migrations")}
    _compare(applied, known)
    return [migration for migration in known if migration.number not in applied]


def _compare(applied: dict[int, str], known: tuple[Migration, ...]) -> None:
    for migration in known:
        checksum = applied.get(migration.number)
        if checksum is not None and checksum != migration.checksum:
            raise MigrationChanged(migration.number, migration.checksum, checksum)


STEP = 1_000_000_000  # fences per epoch; a job that is claimed every second has enough of them for 31 years
_PAGE = 500  # rows; a transaction each
_FIRST = datetime(2025, 1, 1, tzinfo=timezone.utc)
_PAGES = (("list_low_jobs", "raise_job_fences"), ("list_low_runs", "raise_run_fences"))


def recover(database: Database, progress: Callable[[int], None] = lambda _: None) -> int:
    """Raise every fence, in all namespaces; returns the new epoch.

    Safe to repeat, and while beats and workers run.
    """

    def begin(session: Session) -> int:
        ((_, epoch),) = session.fetch("read_store")
        ((now,),) = session.fetch("read_clock")
        # The minute, not only the next number: a backup that is restored twice comes with the same
        # number both times.
        new = max(int(epoch) + 1, int((now - _FIRST).total_seconds() // 60))
        session.fetch("raise_epoch", epoch=new)
        return new

    epoch = database.write(begin)
    for listing, raising in _PAGES:
        after = FIRST_ID
        while page := database.read(listing, floor=epoch * STEP, after_id=after, page_size=_PAGE):
            after = str(page[-1][0])
            rows = [(str(row[0]),) for row in page]
            _raise(database, raising, rows, epoch * STEP)
            progress(len(page))
    database.write(lambda session: session.fetch("raise_lock_fences", floor=epoch * STEP, step=STEP))
    return epoch


def _raise(database: Database, block: str, rows: list[tuple[str]], floor: int) -> None:
    database.write(lambda session: session.fetch(block, rows, floor=floor, step=STEP))
