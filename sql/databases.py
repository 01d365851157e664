"""What the statements of `sql/source` say in each database: its phrases, its types, its markers."""

import re
import textwrap
from collections.abc import Mapping, Sequence

Columns = tuple[tuple[str, str], ...]
"""Names with their kinds."""

WIDTH = 120
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_LOCKS = re.compile(r"\n *FOR (?:NO KEY )?(?:UPDATE|SHARE)(?: OF \w+)?(?: SKIP LOCKED)?(?=\n|$)")


class Database:
    """One kind of database."""

    phrases: Mapping[str, str] = {}
    """What a phrase of the source becomes; one that is missing here is none in this database."""
    types: Mapping[str, str] = {}
    """What a kind of value is called; a kind with a length ends in `(`."""

    def statement(self, text: str, rows: Columns, returns: Columns) -> tuple[str, list[str]]:
        """Return what is sent, and the names of its parameters in the order of their markers."""
        return self.finished(spoken(text, self.phrases), rows, returns)

    def finished(self, text: str, rows: Columns, returns: Columns) -> tuple[str, list[str]]:
        """Write markers for the parameters and the rows."""
        raise NotImplementedError

    def marker(self, key: str, at: int, rows: Columns) -> str:
        """Return what a header tells of the marker of a value: its place in `key`, from 1."""
        return ""

    def type(self, kind: str) -> str:
        """Return the type of a kind of value."""
        if kind in self.types:
            return self.types[kind]
        base, _, length = kind.partition("(")
        return self.types[f"{base}("] + length if f"{base}(" in self.types else self.types[base]


class Sqlite(Database):
    """One writer at a time: nothing is locked by row. A batch is a list of values."""

    phrases: Mapping[str, str] = {
        "after": "after({0}, {1})",  # a function that the store adds
        "before": "after({0}, -{1})",
        "long_before": "after({0}, -{1})",
        "key": "{0}",
        "uuid": "{0}",
        "later": "max({0}, {1})",
        "same": "{0} IS {1}",
        "one_of": "{0} IN (SELECT value FROM json_each({1}))",
        "none_of": "{0} NOT IN (SELECT value FROM json_each({1}))",
        "total": "sum({0})",
    }

    def finished(self, text: str, rows: Columns, returns: Columns) -> tuple[str, list[str]]:
        """Write numbers for the parameters; those of the rows, which the store puts in, follow."""
        text = _LOCKS.sub("", text).replace("LOOP JOIN", "CROSS JOIN")
        text = text.replace(" AS (:rows)", f" ({_names(rows)}) AS (:rows)")
        names = _used(text)
        return _PARAMETER.sub(lambda m: m[0] if m[1] == "rows" else f"?{names.index(m[1]) + 1}", text), names

    def marker(self, key: str, at: int, rows: Columns) -> str:
        """Return the number of a parameter."""
        return f"?{at} " if key == "parameters" else ""


class Postgresql(Database):
    """A batch is an array for each of its columns."""

    phrases: Mapping[str, str] = {
        "after": "{0} + {1} * interval '1 second'",
        "before": "{0} - {1} * interval '1 second'",
        "long_before": "{0} - {1} * interval '1 second'",
        "key": "ANY(ARRAY[{0}])",
        "uuid": "CAST({0} AS uuid)",
        "later": "greatest({0}, {1})",
        "same": "{0} IS NOT DISTINCT FROM {1}",
        "one_of": "{0} = ANY({1})",
        "none_of": "{0} <> ALL({1})",
        "total": "sum({0})::bigint",
    }
    types: Mapping[str, str] = {
        "id": "uuid",
        "instant": "timestamptz",
        "seconds": "float8",
        "flag": "smallint",
        "int": "integer",
        "bigint": "bigint",
        "text": "text",
        "word": "text",
    }

    def finished(self, text: str, rows: Columns, returns: Columns) -> tuple[str, list[str]]:
        """Write numbers: first for the arrays, then for the other parameters."""
        arrays = [f"${at}::{self.type(kind)}[]" for at, (_, kind) in enumerate(rows, 1)]
        text = re.sub(r" INDEXED BY \w+", "", text).replace("LOOP JOIN", "INNER JOIN")
        text = text.replace(":now", "statement_timestamp()")
        text = text.replace(" AS (:rows)", f" ({_names(rows)}) AS (SELECT * FROM unnest({listed(arrays)}))")  # noqa: S608
        names = _used(text)
        return _PARAMETER.sub(lambda m: f"${names.index(m[1]) + len(arrays) + 1}", text), names

    def marker(self, key: str, at: int, rows: Columns) -> str:
        """Return the number of an array or a parameter."""
        return {"rows": f"${at} ", "parameters": f"${len(rows) + at} "}.get(key, "")


_DATEADD = """\
DATEADD(
    MICROSECOND, ROUND(1000000 * ({1} - FLOOR({1})), 0),
    DATEADD(SECOND, FLOOR({1}), {0})
)"""


class Mssql(Database):
    """A block is one batch: its parameters are variables, and its rows one JSON text."""

    phrases: Mapping[str, str] = {
        "after": _DATEADD,
        "before": _DATEADD.replace("{1}", "-{1}"),
        # A century has more seconds than an int, so its days are counted first; parts of a second
        # do not matter.
        "long_before": """\
DATEADD(
    SECOND, -{1} - 86400 * FLOOR(-{1} / 86400), DATEADD(DAY, FLOOR(-{1} / 86400), {0})
)""",
        "key": "{0}",
        "uuid": "{0}",
        "total": "SUM(CAST({0} AS bigint))",
        "count": "COUNT_BIG({0})",
    }
    types: Mapping[str, str] = {
        "id": "uniqueidentifier",
        "instant": "datetime2(6)",
        "seconds": "float(53)",
        "flag": "bit",
        "int": "int",
        "bigint": "bigint",
        "text": "nvarchar(max)",
        "text(": "nvarchar(",
        "word(": "varchar(",
        "list": "nvarchar(max)",
    }
    tables = (
        "Changes|DeletedJobs|IdempotencyKeys|JobRuns|Jobs|Locks|Nodes|Releases|SchemaMigrations|SqlbeatGuard|StoreInfo"
    )

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._kinds = kinds

    def finished(self, text: str, rows: Columns, returns: Columns) -> tuple[str, list[str]]:
        """Declare the parameters and the clock in front."""
        text = re.sub(r" INDEXED BY \w+", "", text)
        if "LOOP JOIN" in text and "OPTION (" not in text:
            text = text.replace("LOOP JOIN", "INNER JOIN") + "\nOPTION (LOOP JOIN, FORCE ORDER)"
        if limit := re.search(r"\nLIMIT (:\w+)$", text):
            *_, select = re.finditer(r"^SELECT\b", text, re.MULTILINE)
            text = f"{text[: select.end()]} TOP ({limit[1]}){text[select.end() : limit.start()]}"
        if text.startswith("UPDATE ") and (returning := re.search(r"\nRETURNING [\w, ]+$", text)):
            text = text[: returning.start()].replace("\nWHERE ", "\nOUTPUT inserted.:returns INTO @changed\nWHERE ", 1)
        if given := re.search(r"OUTPUT (inserted|deleted)\.:returns INTO @(\w+)", text):
            text = self._output(text, returns, *given.groups())
        text = text.removeprefix("WITH p AS (:rows)\n\n")
        text = _BY_KEY.sub(r"STRAIGHT_JOIN \1 AS \2 FORCE INDEX (PRIMARY)\3", text)
        source = re.compile(r"^( *)(.*)\bFROM p\b(?: \(([\w, ]+)\))?(?: AS (\w+))?", re.MULTILINE)
        text = source.sub(lambda place: self._openjson(rows, *place.groups()), text)
        text = re.sub(rf"\b(FROM|JOIN|INTO|UPDATE|TABLE) ({self.tables})\b", r"\1 dbo.\2", text)
        names = [name for name in _used(text) if name != "now"]
        declared = [f"@{name} {self.type(self._kinds[name])} = ?" for name in names]
        declared += ["@rows nvarchar(max) = ?"] if rows else []
        first = [f"DECLARE {listed(declared).strip()};"] if declared else []
        first += ["DECLARE @now datetime2(6) = SYSUTCDATETIME();"] if ":now" in text else []
        first += [""] if first and not text.startswith("DECLARE") else []
        return "\n".join([*first, _PARAMETER.sub(r"@\1", text)]), names

    def _output(self, text: str, returns: Columns, place: str, table: str) -> str:
        """Return a text whose result goes through a table variable, as a trigger demands."""
        names = ", ".join(name for name, _ in returns)
        given = ", ".join(f"{place}.{name}" for name, _ in returns)
        declared = ", ".join(f"{name} {self.type(kind)} NOT NULL" for name, kind in returns)
        text = text.replace(f"{place}.:returns INTO @{table}", f"{given} INTO @{table} ({names})")
        before, _, after = text.partition("\n\n") if text.startswith("DECLARE") else ("", "", text)
        head = f"{before}\n" if before else ""
        return f"{head}DECLARE @{table} TABLE ({declared});\n\n{after};\n\nSELECT {names} FROM @{table}"

    def _openjson(self, rows: Columns, indent: str, before: str, chosen: str | None, alias: str | None) -> str:
        """Return the rows, or some of their columns, as a table."""
        wanted = chosen.split(", ") if chosen else [name for name, _ in rows]
        read = [f"{name} {self.type(kind)} '$[{at}]'" for at, (name, kind) in enumerate(rows) if name in wanted]
        lines = f"\n{indent}    " + f",\n{indent}    ".join(read) + f"\n{indent}" if len(read) > 2 else ", ".join(read)
        return f"{indent}{before}FROM OPENJSON(:rows) WITH ({lines}) AS {alias or 'p'}"


# Of a small table MySQL would rather read all rows, and lock them: a row that somebody keeps locked
# would be in the way of all others.
_BY_KEY = re.compile(
    r"STRAIGHT_JOIN (Jobs|JobRuns|Locks) AS (\w+)"
    r"(\s+ON (?:\2\.(?:Id|RunId)|\2\.Namespace = :namespace AND \2\.LockKey) =)"
)


class Mysql(Database):
    """MySQL and MariaDB. A block is one packet: literals are written into it, its rows as JSON."""

    phrases: Mapping[str, str] = {
        "after": "{0} + INTERVAL {1} SECOND",
        "before": "{0} - INTERVAL {1} SECOND",
        "long_before": "{0} - INTERVAL {1} SECOND",
        "key": "{0}",
        "uuid": "{0}",
        "later": "greatest({0}, {1})",
        "same": "{0} <=> {1}",
        "one_of": "{0} IN ({1})",
        "none_of": "{0} NOT IN ({1})",
        "total": "sum({0})",
    }
    types: Mapping[str, str] = {
        "id": "char(36)",
        "instant": "datetime(6)",
        "seconds": "double",
        "flag": "smallint",
        "int": "integer",
        "bigint": "bigint",
        "text": "mediumtext",
        "word": "mediumtext",
    }

    def finished(self, text: str, rows: Columns, returns: Columns) -> tuple[str, list[str]]:
        """Set the clock and the rows in front, and write the markers of Python's formatting."""
        text = re.sub(r" INDEXED BY (\w+)", r" FORCE INDEX (\1)", text.replace("%", "%%"))
        text = text.replace("LOOP JOIN", "STRAIGHT_JOIN").replace("FOR NO KEY UPDATE", "FOR UPDATE")
        text = text.removeprefix("WITH p AS (:rows)\n\n")
        text = _BY_KEY.sub(r"STRAIGHT_JOIN \1 AS \2 FORCE INDEX (PRIMARY)\3", text)
        source = re.compile(r"^( *)(.*)\b(FROM|UPDATE) p\b(?: \(([\w, ]+)\))?", re.MULTILINE)
        text = source.sub(lambda place: f"{place[1]}{place[2]}{place[3]} {self._table(rows, place[1], place[4])}", text)
        names = [name for name in _used(text) if name != "now"]
        first = ["@now = utc_timestamp(6)"] if ":now" in text else []
        first += ["@rows = %(rows)s"] if rows else []
        text = text.replace(":now", "CAST(@now AS datetime(6))")
        head = f"SET {', '.join(first)};\n" if first else ""
        return head + _PARAMETER.sub(r"%(\1)s", text), names

    def _table(self, rows: Columns, indent: str, chosen: str | None) -> str:
        """Return the rows, or some of their columns, as a table."""
        wanted = chosen.split(", ") if chosen else [name for name, _ in rows]
        read = [
            f"{name} {self.type(kind)} PATH '$[{at}]' ERROR ON ERROR"
            for at, (name, kind) in enumerate(rows)
            if name in wanted
        ]
        if len(read) == 1:
            return f"JSON_TABLE(@rows, '$[*]' COLUMNS ({read[0]})) AS p"
        columns = "        " + ",\n        ".join(read)
        return textwrap.indent(f"JSON_TABLE(\n    @rows, '$[*]' COLUMNS (\n{columns}\n    )\n) AS p", indent).lstrip()


def spoken(text: str, phrases: Mapping[str, str]) -> str:
    """Return a text with its phrases in the words of a database."""
    match = re.search(rf"\b({'|'.join(phrases)})\(", text)
    if match is None:
        return text
    arguments, rest = _arguments(text, match.end())
    said = phrases[match[1]].format(*(spoken(argument, phrases) for argument in arguments))
    before = text[: match.start()]
    line = before.rpartition("\n")[2]
    said = textwrap.indent(said, " " * (len(line) - len(line.lstrip()))).lstrip()
    return before + said + spoken(text[rest:], phrases)


def _arguments(text: str, start: int) -> tuple[list[str], int]:
    """Return the arguments of a phrase, and where the text goes on."""
    arguments, depth, begin = [], 0, start
    for at in range(start, len(text)):
        if text[at] in ",)" and not depth:
            arguments.append(text[begin:at].strip())
            begin = at + 1
            if text[at] == ")":
                return arguments, begin
        depth += (text[at] == "(") - (text[at] == ")")
    raise ValueError(f"a phrase does not end: {text[start:]}")


def listed(items: Sequence[str], room: int = 90) -> str:
    """List items on one line, or on lines of their own where they are too many for that."""
    if len(", ".join(items)) <= room:
        return ", ".join(items)
    return "\n    " + "\n    ".join(filled(items, 4)) + "\n"


def filled(items: Sequence[str], used: int) -> list[str]:
    """Return lines of items that are no longer than the width."""
    lines: list[str] = []
    for item in items:
        if lines and used + len(lines[-1]) + len(item) + 2 <= WIDTH:
            lines[-1] += f" {item},"
        else:
            lines.append(f"{item},")
    return [*lines[:-1], lines[-1].removesuffix(",")]


def _names(rows: Columns) -> str:
    return listed([name for name, _ in rows])


def _used(text: str) -> list[str]:
    """Return the parameters of a text, in the order in which they come."""
    return [name for name in dict.fromkeys(_PARAMETER.findall(text)) if name != "rows"]
