"""Creates and upgrades the schema: numbered scripts, forward only, each applied once and guarded by its checksum."""

import hashlib
import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import celery_sqlbeat
from celery_sqlbeat.errors import MigrationChanged, ReleaseTooOld, SchemaError, TablesMissing
from celery_sqlbeat.store.database import Database
from celery_sqlbeat.store.session import Row, Session
from celery_sqlbeat.store.statements import load, sql_folder

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_BATCH_ENDS = {"mssql": "GO\n"}  # sqlcmd and SSMS run a script batch by batch, and sqlcmd from a pipe no unended one
_HEAD = "-- All tables and indexes of celery-sqlbeat: what `celery -A app sqlbeat init` runs, and `--sql` prints.\n"
# What sqlcmd leaves off and every batch needs; and the first error is to end its batch.
_SESSIONS = {"mssql": "SET XACT_ABORT ON;\nSET QUOTED_IDENTIFIER ON;\nSET NOCOUNT ON;\n"}


class Migration(NamedTuple):
    """One script."""

    number: int
    name: str
    text: str
    checksum: str


class SchemaVersion(NamedTuple):
    """Which schema the database has, and which one this release knows."""

    found: int
    known: int
    oldest: str | None = None
    """The oldest release that may work on it, where it is newer than this release knows."""

    @property
    def remark(self) -> str | None:
        """What is worth knowing of it: a newer release has upgraded it."""
        if self.found <= self.known:
            return None
        own = celery_sqlbeat.__version__
        newer = (
            f"the schema is at version {self.found}, newer than version {self.known}, which celery-sqlbeat {own} knows"
        )
        return f"{newer}: releases from {self.oldest} on may use it"


@cache  # a handful of databases
def migrations(database: str) -> tuple[Migration, ...]:
    """The migrations for a database, in order."""
    found = []
    for path in sorted((sql_folder(database) / "migrations").glob("*.sql")):
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise SchemaError(f"{path.name} is not named like 0001_what_it_does.sql")
        text = path.read_text(encoding="utf-8").replace("\r\n", "\n")
        found.append(Migration(int(match[1]), match[2], text, hashlib.sha256(text.encode()).hexdigest()))
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise SchemaError(f"the migrations for {database} are not numbered without a hole: install the package again")
    return tuple(found)


def creation_script(database: str) -> str:
    """What `migrate` would run on an empty database, as one script to read or to run by hand: `sql/*/create.sql`.

    It records what it applied, so that a later `migrate` goes on from there.
    """
    blocks = load(database)
    parts = [_HEAD + _SESSIONS.get(database, ""), blocks["create_migrations_table"].text + ";\n"]
    for one in migrations(database):
        note = blocks["note_migration"].text
        for fact, literal in (
            ("number", f"{one.number}"),
            ("name", f"'{one.name}'"),
            ("checksum", f"'{one.checksum}'"),
        ):
            note = re.sub(rf"[:@]{fact}\b", literal, note)
        parts += [one.text, note + ";\n"]
    end = _BATCH_ENDS.get(database, "")
    return "\n".join(part.rstrip().removesuffix(end.strip()).rstrip() + "\n" + end for part in parts).rstrip()


def migrate(database: Database, progress: Callable[[str], None] = lambda _: None) -> list[str]:
    """Bring the schema up to this version; returns the names of what was applied. Safe while others do the same."""
    known = migrations(database.dialect.name)
    applied: list[str] = []
    database.make_place()

    def next_one(session: Session) -> Migration | None:
        session.migration_lock()
        session.fetch("create_migrations_table")
        missing = _missing(session, known)
        if not missing:
            _version(session.fetch, known)
            return None
        one = missing[0]
        session.script(one.text)
        session.fetch("note_migration", number=one.number, name=one.name, checksum=one.checksum)
        return one

    # One transaction each: what was applied stays applied if a later one fails.
    while (one := database.write(next_one)) is not None:
        applied.append(f"{one.number:04d}_{one.name}")
        progress(f"applied {applied[-1]} ({one.number} of {len(known)})")
    return applied


def check_schema(database: Database) -> SchemaVersion:
    """Raise a SchemaError unless the schema is one that this release can work on; a newer one may be, as it says."""
    known = migrations(database.dialect.name)
    if not database.read("read_migrations_table"):
        raise TablesMissing
    found = {row[0]: row[1] for row in database.read("read_migrations")}
    _compare(found, known)
    if any(migration.number not in found for migration in known):
        raise SchemaError(
            f"the schema is at version {max(found, default=0)}, this package needs {len(known)}: "
            "run celery -A app sqlbeat init"
        )
    return _version(database.read, known)


def _version(read: Callable[[str], list[Row]], known: tuple[Migration, ...]) -> SchemaVersion:
    """Which schema is there; ReleaseTooOld where it has left this release behind."""
    found = max((int(row[0]) for row in read("read_migrations")), default=0)
    if found <= len(known):
        return SchemaVersion(found, len(known))
    oldest, own = str(read("read_oldest_release")[0][0]), celery_sqlbeat.__version__
    if _numbers(own) < _numbers(oldest):
        raise ReleaseTooOld(found, own, oldest)
    return SchemaVersion(found, len(known), oldest)


def _numbers(release: str) -> tuple[int, ...]:
    """A release as its numbers; one before the final release counts as that."""
    return tuple(int(number) for number in re.findall(r"\d+", release)[:3])


def _missing(session: Session, known: tuple[Migration, ...]) -> list[Migration]:
    found = {row[0]: row[1] for row in session.fetch("read_migrations")}
    _compare(found, known)
    return [migration for migration in known if migration.number not in found]


def _compare(found: dict[int, str], known: tuple[Migration, ...]) -> None:
    for migration in known:
        checksum = found.get(migration.number)
        if checksum is not None and checksum != migration.checksum:
            raise MigrationChanged(migration.number, migration.checksum, checksum)
