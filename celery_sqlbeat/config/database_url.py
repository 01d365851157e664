"""Read the text of `sqlbeat_database_url`. Opens nothing, and no error shows a secret."""

import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field

from celery_sqlbeat.config import redaction
from celery_sqlbeat.errors import SettingError

SETTING = "sqlbeat_database_url"
LATER = {"redis", "rediss"}
ALLOWED = (
    "write sqlite:///file.db, postgresql://user@host/database, mysql://user@host/database, mssql://host/database, "
    "or mssql+odbc: followed by an ODBC connection string"
)
MYSQL_OPTIONS = frozenset(["unix_socket", "ssl_mode", "ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password"])
TLS_MODES = ("disabled", "preferred", "required", "verify_ca", "verify_identity")  # as MySQL's own programs have them
IDENTITIES = {  # who logs in to SQL Server where the address names no user, and its options
    "default": {"client_id"},
    "managed": {"client_id"},
    "workload": {"client_id", "tenant_id"},
    "cli": {"tenant_id"},
}


@dataclass(frozen=True, repr=False)
class DatabaseUrl:
    """The address of a database, masked in its repr and str.

    `text`, `password`, `options` and `odbc` may hold secrets.
    """

    text: str
    database: str
    """One of "sqlite", "postgresql", "mysql", "mssql"."""
    name: str
    """Of the database on its server; on SQLite its file, "" for one in memory."""
    user: str | None = None
    password: str | None = None
    hosts: tuple[tuple[str, int | None], ...] = ()
    """More than one on PostgreSQL and MySQL only."""
    instance: str | None = None
    """Of SQL Server."""
    options: Mapping[str, str] = field(default_factory=dict)
    odbc: str | None = None
    """The ODBC connection string as given."""

    @property
    def host(self) -> str | None:
        """The first host; None on SQLite, and where the driver's default holds."""
        return self.hosts[0][0] if self.hosts else None

    @property
    def port(self) -> int | None:
        """The port of the first host; None for the driver's default."""
        return self.hosts[0][1] if self.hosts else None

    @property
    def in_memory(self) -> bool:
        """Whether the database ends with its connection, so that no other process can see it."""
        return self.database == "sqlite" and self.name == ""

    def masked(self) -> str:
        """Return the address without its secrets."""
        return redaction.masked(self.text)

    def mask(self, text: str) -> str:
        """Return the text of a driver's error without the secrets of this address."""
        return redaction.mask_text(text, self.text)

    def libpq(self) -> dict[str, str]:
        """Return the parameters by which libpq connects."""
        hosts = ",".join(host for host, _ in self.hosts)
        ports = ",".join(str(port or "") for _, port in self.hosts)
        named = {"user": self.user, "password": self.password, "dbname": self.name, "host": hosts, "port": ports}
        return {key: value for key, value in named.items() if value} | dict(self.options)

    def __str__(self) -> str:
        return self.masked()

    def __repr__(self) -> str:
        return f"DatabaseUrl({self.masked()!r})"

    def __hash__(self) -> int:
        return hash(self.text)


def database_url(text: object) -> DatabaseUrl:
    """Return the address that a text names, or raise a SettingError that shows no secret."""
    if not isinstance(text, str):
        raise SettingError(SETTING, f"<{type(text).__name__}>", f"not a text; {ALLOWED}")
    try:
        return _read(text)
    except _Unreadable as refusal:
        reason = str(refusal)
    raise SettingError(SETTING, redaction.masked(text), reason)  # here, so that no context has a secret


class _Unreadable(Exception):
    """Why an address cannot be read; never leaves this module."""


def _read(text: str) -> DatabaseUrl:
    if not text.isprintable() or text != text.strip() or len(text) > redaction.LONGEST:
        raise _Unreadable("it is too long, or holds a line end, a control character or a blank at its ends")
    if text.lower().startswith(redaction.ODBC):
        return _read_odbc(text)
    scheme = text.partition(":")[0].lower()
    if scheme in LATER:
        raise _Unreadable(f"{scheme}:// is not supported yet by this version; {ALLOWED}")
    if scheme not in _READERS:
        raise _Unreadable(f"no kind of database that is known; {ALLOWED}")
    form, read = _READERS[scheme]
    parts = redaction.split_url(text)
    if parts is None:
        raise _Unreadable(form)
    return read(text, parts)


_ENCODE = "in user, password and options write @ : / ? # & % as %40 %3A %2F %3F %23 %26 %25"
_SQLITE = "write sqlite:///file.db (relative) or sqlite:////var/lib/file.db (absolute), and ? # % as %3F %23 %25"
_POSTGRESQL = f"write postgresql://user:password@host:port/database?sslmode=require; {_ENCODE}"
_MSSQL = f"write mssql://user:password@host:port/instance/database?Encrypt=yes; {_ENCODE}"
_MYSQL = f"write mysql://user:password@host:port/database?ssl_mode=verify_identity&ssl_ca=/ca.pem; {_ENCODE}"
_NO_OPTIONS = frozenset(["server", "address", "addr", "database", "uid", "user", "pwd", "password", "dsn", "filedsn"])


def _read_sqlite(text: str, parts: redaction.Parts) -> DatabaseUrl:
    path = urllib.parse.unquote(parts.path[1:])
    names_a_file = path and not path.endswith("/") and "\0" not in path
    if parts.query or (parts.path and not names_a_file):
        raise _Unreadable(_SQLITE)
    return DatabaseUrl(text, "sqlite", "" if path == ":memory:" else path)


def _read_postgresql(text: str, parts: redaction.Parts) -> DatabaseUrl:
    name = urllib.parse.unquote(parts.path[1:])
    options = _options(parts.query)
    if "/" in parts.path[1:] or not (name or options.keys() & {"dbname", "service"}):
        raise _Unreadable(f"it does not name one database; {_POSTGRESQL}")
    return DatabaseUrl(text, "postgresql", name, *_user(parts), _hosts(parts.hosts), options=options)


def _read_mysql(text: str, parts: redaction.Parts) -> DatabaseUrl:
    name = urllib.parse.unquote(parts.path[1:])
    if not name or "/" in parts.path[1:]:
        raise _Unreadable(f"it does not name one database; {_MYSQL}")
    options = _options(parts.query)
    if unknown := options.keys() - MYSQL_OPTIONS:
        raise _Unreadable(f"{min(unknown)} is no option; they are {', '.join(sorted(MYSQL_OPTIONS))}; {_MYSQL}")
    if options.get("ssl_mode", TLS_MODES[0]) not in TLS_MODES:
        raise _Unreadable(f"ssl_mode is one of {', '.join(TLS_MODES)}")
    if options.get("ssl_mode") in TLS_MODES[:2] and options.keys() & {"ssl_ca", "ssl_cert", "ssl_key"}:
        raise _Unreadable(f"ssl_mode={options['ssl_mode']} looks at no certificate")
    hosts = _hosts(parts.hosts)
    if "unix_socket" in options and any(host for host, _ in hosts):
        raise _Unreadable(f"it names both a host and a unix_socket; {_MYSQL}")
    return DatabaseUrl(text, "mysql", name, *_user(parts), hosts, options=options)


def _read_mssql(text: str, parts: redaction.Parts) -> DatabaseUrl:
    hosts = _hosts(parts.hosts)
    *instance, name = (urllib.parse.unquote(part) for part in parts.path[1:].split("/"))
    if len(hosts) != 1 or not hosts[0][0] or len(instance) > 1 or not all([*instance, name]):
        raise _Unreadable(f"it does not name one host and one database; {_MSSQL}")
    options = _options(parts.query)
    for option in options:
        if option.lower() in _NO_OPTIONS:
            raise _Unreadable(f"{option} is no option; {_MSSQL}")
    _check_identity(options, has_login=parts.userinfo is not None)
    return DatabaseUrl(text, "mssql", name, *_user(parts), hosts, instance[0] if instance else None, options)


_READERS = {
    "sqlite": (_SQLITE, _read_sqlite),
    "postgresql": (_POSTGRESQL, _read_postgresql),
    "postgres": (_POSTGRESQL, _read_postgresql),
    "mysql": (_MYSQL, _read_mysql),
    "mariadb": (_MYSQL, _read_mysql),
    "mssql": (_MSSQL, _read_mssql),
}


def _check_identity(options: Mapping[str, str], has_login: bool) -> None:
    given = {key.lower(): value for key, value in options.items()}
    named = {"identity", "client_id", "tenant_id"} & given.keys()
    if named and (has_login or given.keys() & {"authentication", "trusted_connection"}):
        raise _Unreadable(f"{min(named)} is for addresses without a user, Authentication and Trusted_Connection")
    kind = given.get("identity", "default")
    if kind not in IDENTITIES:
        raise _Unreadable(f"identity is one of {', '.join(IDENTITIES)}")
    if unknown := named - {"identity"} - IDENTITIES[kind]:
        raise _Unreadable(f"{min(unknown)} says nothing about identity={kind}")


def _user(parts: redaction.Parts) -> tuple[str | None, str | None]:
    if parts.userinfo is None:
        return None, None
    user, colon, password = parts.userinfo.partition(":")
    return urllib.parse.unquote(user), urllib.parse.unquote(password) if colon else None


def _hosts(text: str) -> tuple[tuple[str, int | None], ...]:
    return tuple(map(_host, text.split(","))) if text else ()


def _host(text: str) -> tuple[str, int | None]:
    match = redaction.HOST.fullmatch(text)
    if match is None or match["v6"] == "" or match["port"] == "":
        raise _Unreadable("its host or port cannot be read; write host, host:port or [ipv6]:port")
    name = match["v6"] or urllib.parse.unquote(match["name"])
    if match["v6"] is None and not re.fullmatch(r"[\w./-]*", name):
        raise _Unreadable("its host holds a character that no host has")
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 0 < port < 65536:
        raise _Unreadable("its port is not from 1 to 65535")
    return name, port


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


_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")  # nothing that could end an ODBC keyword


def _read_odbc(text: str) -> DatabaseUrl:
    string = text[len(redaction.ODBC) :]
    pairs = redaction.odbc_pairs(string)
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
