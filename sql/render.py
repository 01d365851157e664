"""Write `sql/<database>/statements` and `create.sql` from `sql/source`: what `make sql` runs.

A block in `source/*.sql` is for every database; one in `source/<database>/*.sql` takes its place
there, or stands beside the others. docs/design/0014-one-source-of-sql.md says why.
"""

import re
import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from celery_sqlbeat.store.sql.migrations import migrations
from sql.databases import Columns, Database, Mssql, Mysql, Postgresql, Sqlite, filled

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "source"
_RENDERED = "-- Written by `make sql` from sql/source: change it there."
_NAME = re.compile(r"^-- (name|part): (\w+)$", re.MULTILINE)
_INCLUDE = re.compile(r"^( *)-- include: (\w+)$", re.MULTILINE)


@cache
def kinds() -> Mapping[str, str]:
    """Return the kind of each parameter and column."""
    text = re.sub(r"^#.*", "", (SOURCE / "kinds.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
    pieces = re.split(r"^(\S+):", text, flags=re.MULTILINE)[1:]
    given = zip(pieces[::2], pieces[1::2], strict=True)
    return {"now": "instant"} | {name.strip(): kind for kind, names in given for name in names.split(",")}


DATABASES: Mapping[str, Database] = {
    "sqlite": Sqlite(),
    "postgresql": Postgresql(),
    "mssql": Mssql(kinds()),
    "mysql": Mysql(),
}


class Block(NamedTuple):
    """A block of the source: what its header declares, its remarks, and its text."""

    name: str
    rows: Columns
    returns: Columns
    remarks: tuple[str, ...]
    text: str

    def like(self, common: "Block") -> "Block":
        """Return a database's own block, with what its header leaves to that of all databases."""
        declared = self.rows or common.rows, self.returns or common.returns, self.remarks or common.remarks
        return Block(self.name, *declared, self.text)


class Source(NamedTuple):
    """A file of the source."""

    head: str = ""
    blocks: Mapping[str, Block] = {}
    parts: Mapping[str, str] = {}
    """Text that several blocks include."""


def read(path: Path) -> Source:
    """Read a file of the source; one that is not there is empty."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    head, *pieces = _NAME.split(text)
    found = list(zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True))
    blocks = {name: _block(name, body.strip()) for what, name, body in found if what == "name"}
    return Source(head.strip(), blocks, {name: body.strip("\n") for what, name, body in found if what == "part"})


def _block(name: str, body: str) -> Block:
    lines = body.removesuffix(";").splitlines()
    start = next(at for at, line in enumerate(lines) if not line.startswith("--") or _INCLUDE.match(line))
    declared = {"rows": "", "returns": ""}
    remarks: list[str] = []
    latest = ""
    for line in lines[:start]:
        key, _, rest = line.removeprefix("-- ").partition(": ")
        if key in declared:
            declared[latest := key] = rest
        elif latest and line.startswith("--   "):
            declared[latest] += " " + line[5:]
        else:
            latest = ""
            remarks.append(line)
    return Block(
        name, _columns(declared["rows"]), _columns(declared["returns"]), tuple(remarks), "\n".join(lines[start:])
    )


def _columns(declared: str) -> Columns:
    """Read the names that a header declares; it may say another kind than the list does."""
    pairs = [pair.partition(" ") for pair in declared.split(", ") if pair]
    return tuple((name, kind or kinds()[name]) for name, _, kind in pairs)


def rendered(database: str) -> dict[str, str]:
    """Return the files of a database's statements, by name."""
    common = {path.name: read(path) for path in sorted(SOURCE.glob("*.sql"))}
    own = {path.name: read(path) for path in sorted((SOURCE / database).glob("*.sql"))}
    parts = {name: text for file in (*common.values(), *own.values()) for name, text in file.parts.items()}
    return {
        name: _file(database, common.get(name, Source()), own.get(name, Source()), parts)
        for name in sorted(common.keys() | own.keys())
    }


def _file(database: str, common: Source, own: Source, parts: Mapping[str, str]) -> str:
    blocks = {**common.blocks, **own.blocks}
    whole = [block.like(common.blocks.get(name, block)) for name, block in blocks.items()]
    head = "\n".join([_RENDERED, own.head or common.head])
    return "\n\n".join([head, *(_written(database, block, parts) for block in whole)]) + "\n"


def _written(database: str, block: Block, parts: Mapping[str, str]) -> str:
    dialect = DATABASES[database]
    text, names = dialect.statement(_with_parts(block.text, parts), block.rows, block.returns)
    header = [f"-- name: {block.name}"]
    declared = {
        "parameters": tuple((name, kinds()[name]) for name in names),
        "rows": block.rows,
        "returns": block.returns,
    }
    for key, columns in declared.items():
        items = [f"{dialect.marker(key, at, block.rows)}{name} {kind}" for at, (name, kind) in enumerate(columns, 1)]
        header += [f"-- {key}: " + "\n--   ".join(filled(items, len(key) + 5))] if items else []
    return "\n".join([*header, *block.remarks, text.removesuffix(";") + ";"])


def _with_parts(text: str, parts: Mapping[str, str]) -> str:
    return _INCLUDE.sub(lambda place: textwrap.indent(_with_parts(parts[place[2]], parts), place[1]), text)


_BATCH_ENDS = {"mssql": "GO\n"}  # sqlcmd and SSMS run a script batch by batch, and sqlcmd from a pipe no unended one
_HEAD = "-- All tables and indexes of celery-sqlbeat: what `celery -A app sqlbeat init` runs, and `--sql` prints.\n"
# What sqlcmd leaves off and every batch needs; and the first error is to end its batch.
_SESSIONS = {"mssql": "SET XACT_ABORT ON;\nSET QUOTED_IDENTIFIER ON;\nSET NOCOUNT ON;\n"}


def creation_script(database: str) -> str:
    """Return `create.sql`: every migration, each with the note that it was applied."""
    parts = [_HEAD + _SESSIONS.get(database, ""), _filled_in(database, "create_migrations_table", {})]
    for migration in migrations(database):
        facts = {
            ":number": f"{migration.number}",
            ":name": f"'{migration.name}'",
            ":checksum": f"'{migration.checksum}'",
        }
        parts += [migration.text, _filled_in(database, "note_migration", facts)]
    end = _BATCH_ENDS.get(database, "")
    return "\n".join(part.rstrip().removesuffix(end.strip()).rstrip() + "\n" + end for part in parts).rstrip() + "\n"


def _filled_in(database: str, name: str, facts: Mapping[str, str]) -> str:
    """Return a statement about migrations with its parameters written out."""
    files = (read(folder / "schema.sql").blocks for folder in (SOURCE / database, SOURCE))
    text = next(blocks[name] for blocks in files if name in blocks).text
    for parameter, literal in facts.items():
        text = text.replace(parameter, literal)
    return DATABASES[database].statement(text, (), ())[0].removesuffix(";") + ";\n"


def files(database: str) -> dict[Path, str]:
    """Return the text of every file of a database that is made from the source."""
    folder = HERE / database
    statements = {folder / "statements" / name: text for name, text in rendered(database).items()}
    return {**statements, folder / "create.sql": creation_script(database)}


def main() -> None:
    """Write the files of the databases, and delete those that have no source any more."""
    for database in DATABASES:
        made = files(database)
        for path in (HERE / database / "statements").glob("*.sql"):
            if path not in made:
                path.unlink()
        for path, text in made.items():
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
