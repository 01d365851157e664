"""Where the database is: reads the text of `sqlbeat_database_url`. Opens nothing, and no error shows a secret."""

import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field

from celery_sqlbeat import masking
from celery_sqlbeat.errors import SettingError

SETTING = "sqlbeat_database_url"
SUPPORTED = {"sqlite": "sqlite", "postgresql": "postgresql", "postgres": "postgresql", "mssql": "mssql"}
LATER = {"mysql", "mariadb", "redis", "rediss"}
ALLOWED = (
    "write sqlite:///file.db, postgresql://user@host/database, mssql://host/database, "
    "or mssql+odbc: followed by an ODBC connection string"
)


@dataclass(frozen=True, repr=False)
class DatabaseUrl:
    """A database's address. Its repr and str are masked; `text`, `password`, `options` and `odbc` may hold secrets."""

    text: str
    database: str  # "sqlite", "postgresql" or "mssql"
    name: str  # of the database on its server; on SQLite the file's path, "" for a database in memory
    user: str | None = None
    password: str | None = None
    hosts: tuple[tuple[str, int | None], ...] = ()  # more than one on PostgreSQL only
    instance: str | None = None  # of SQL Server
    options: Mapping[str, str] = field(default_factory=dict)
    odbc: str | None = None  # the ODBC connection string as it was given

    @property
    def host(self) -> str | None:
        """The first host; None where there is none (SQLite) or the driver's default holds."""
        return self.hosts[0][0] if self.hosts else None

    @property
    def port(self) -> int | None:
        """The port of the first host; None for the driver's default."""
        return self.hosts[0][1] if self.hosts else None

    @property
    def in_memory(self) -> bool:
        """Whether the database dies with its connection, so that no other process can see it."""
        return self.database == "sqlite" and self.name == ""

    def masked(self) -> str:
        """The address as it may be shown."""
        return masking.masked(self.text)

    def mask(self, text: str) -> str:
        """Return the text of a driver's error without the secrets of this address."""
        return masking.mask_text(text, self.text)

    def libpq(self) -> dict[str, str]:
        """Return the parameters by which libpq connects."""
        found: dict[str, str | None] = {"user": self.user, "password": self.password, "dbname": self.name}
        if self.hosts:
            found["host"] = ",".join(host for host, _ in self.hosts)
            found["port"] = ",".join(str(port or "") for _, port in self.hosts)
        return {key: value for key, value in found.items() if value} | dict(self.options)

    def __str__(self) -> str:
        return self.masked()

    def __repr__(self) -> str:
        return f"DatabaseUrl({self.masked()!r})"

    def __hash__(self) -> int:
        return hash(self.text)


def database_url(text: object) -> DatabaseUrl:
    """Return the address that the text names, or raise a SettingError that shows no secret."""
    if not isinstance(text, str):
        raise SettingError(SETTING, f"<{type(text).__name__}>", f"not a text; {ALLOWED}")
    try:
        return _read(text)
    except _Unreadable as refusal:
        reason = refusal.reason
    raise SettingError(SETTING, masking.masked(text), reason)  # out here, so that no context keeps a secret


class _Unreadable(Exception):  # never leaves this module
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _read(text: str) -> DatabaseUrl:
    if not text.isprintable() or text != text.strip() or len(text) > masking.LONGEST:
        raise _Unreadable("it is too long, or holds a line end, a control character or a blank at its ends")
    if text.lower().startswith(masking.ODBC):
        return _read_odbc(text)
    scheme = text.partition(":")[0].lower()
    if scheme in LATER:
        raise _Unreadable(f"{scheme}:// is not supported yet by this version; {ALLOWED}")
    if scheme not in SUPPORTED:
        raise _Unreadable(f"no kind of database that is known; {ALLOWED}")
    parts = masking.split_url(text)
    if parts is None:
        raise _Unreadable(_FORMS[scheme])
    read = {"sqlite": _read_sqlite, "postgresql": _read_postgresql, "mssql": _read_mssql}[SUPPORTED[scheme]]
    return read(text, parts)


_ENCODE = "in user, password and options write @ : / ? # & % as %40 %3A %2F %3F %23 %26 %25"
_FORMS = {
    "sqlite": "write sqlite:///file.db (relative) or sqlite:////var/lib/file.db (absolute), and ? # % as %3F %23 %25",
    "postgresql": f"write postgresql://user:password@host:port/database?sslmode=require; {_ENCODE}",
    "mssql": f"write mssql://user:password@host:port/instance/database?Encrypt=yes; {_ENCODE}",
}
_FORMS["postgres"] = _FORMS["postgresql"]


def _read_sqlite(text: str, parts: masking.Parts) -> DatabaseUrl:
    path = urllib.parse.unquote(parts.path[1:])
    names_a_file = path and not path.endswith("/") and "\0" not in path
    if parts.query or (parts.path and not names_a_file):
        raise _Unreadable(_FORMS["sqlite"])
    return DatabaseUrl(text, "sqlite", "" if path == ":memory:" else path)


def _read_postgresql(text: str, parts: masking.Parts) -> DatabaseUrl:
    user, password = _user(parts)
    name = urllib.parse.unquote(parts.path[1:])
    options = _options(parts.query)
    if "/" in parts.path[1:] or not (name or options.keys() & {"dbname", "service"}):
        raise _Unreadable(f"it does not name one database; {_FORMS['postgresql']}")
    return DatabaseUrl(text, "postgresql", name, user, password, _hosts(parts.hosts), options=options)


def _read_mssql(text: str, parts: masking.Parts) -> DatabaseUrl:
    user, password = _user(parts)
    hosts = _hosts(parts.hosts)
    *instance, name = (urllib.parse.unquote(part) for part in parts.path[1:].split("/"))
    if len(hosts) != 1 or not hosts[0][0] or len(instance) > 1 or not all([*instance, name]):
        raise _Unreadable(f"it does not name one host and one database; {_FORMS['mssql']}")
    options = _options(parts.query)
    for option in options:
        if option.lower() in _NO_OPTIONS:
            raise _Unreadable(f"{option} is no option; {_FORMS['mssql']}")
    _check_identity(options, has_login=user is not None)
    return DatabaseUrl(text, "mssql", name, user, password, hosts, instance[0] if instance else None, options)


_NO_OPTIONS = frozenset(["server", "address", "addr", "database", "uid", "user", "pwd", "password", "dsn", "filedsn"])


IDENTITIES = {  # who logs in to SQL Server where the address names no user, and what may be said about it
    "default": {"client_id"},
    "managed": {"client_id"},
    "workload": {"client_id", "tenant_id"},
    "cli": {"tenant_id"},
}


def _check_identity(options: Mapping[str, str], has_login: bool) -> None:
    given = {key.lower(): value for key, value in options.items()}
    said = {"identity", "client_id", "tenant_id"} & given.keys()
    if said and (has_login or given.keys() & {"authentication", "trusted_connection"}):
        raise _Unreadable(f"{min(said)} is for addresses without a user, Authentication and Trusted_Connection")
    kind = given.get("identity", "default")
    if kind not in IDENTITIES:
        raise _Unreadable(f"identity is one of {', '.join(IDENTITIES)}")
    if unknown := said - {"identity"} - IDENTITIES[kind]:
        raise _Unreadable(f"{min(unknown)} says nothing about identity={kind}")


def _user(parts: masking.Parts) -> tuple[str | None, str | None]:
    if parts.userinfo is None:
        return None, None
    user, colon, password = parts.userinfo.partition(":")
    return urllib.parse.unquote(user), urllib.parse.unquote(password) if colon else None


def _hosts(text: str) -> tuple[tuple[str, int | None], ...]:
    return tuple(map(_host, text.split(","))) if text else ()


def _host(text: str) -> tuple[str, int | None]:
    match = _HOST.fullmatch(text)
    if match is None:
        raise _Unreadable("its host or port cannot be read; write host, host:port or [ipv6]:port")
    name = match["v6"] or urllib.parse.unquote(match["name"])
    if match["v6"] is None and not re.fullmatch(r"[\w./-]*", name):
        raise _Unreadable("its host holds a character that no host has")
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 0 < port < 65536:
        raise _Unreadable("its port is not from 1 to 65535")
    return name, port


_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]{1,5}))?")


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        key, equals, value = pair.partition("=")
        if not equals or not _OPTION.fullmatch(key):
            raise _Unreadable("what follows the ? is not name=value&name=value")
        if key.lower() in map(str.lower, options):
            raise _Unreadable("it has an option twice")
        options[key] = urllib.parse.unquote(value)
    return options


_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")  # nothing that could end one ODBC keyword and begin another


def _read_odbc(text: str) -> DatabaseUrl:
    string = text[len(masking.ODBC) :]
    pairs = masking.odbc_pairs(string)
    if not pairs:
        raise _Unreadable(
            "no ODBC string: write Keyword=value;... with {} around a value that holds ; { or }, and } as }}"
        )
    values = {pair.key: pair.value for pair in reversed(pairs)}  # of two equal keywords ODBC takes the first
    host = values.get("server") or values.get("address") or values.get("addr")
    if not host and not values.keys() & {"dsn", "filedsn"}:
        raise _Unreadable("its ODBC string names neither Server nor DSN")
    return DatabaseUrl(
        text=text,
        database="mssql",
        name=values.get("database", ""),
        user=values.get("uid") or values.get("user"),
        password=values.get("pwd") or values.get("password"),
        hosts=((host, None),) if host else (),
        odbc=string,
    )
