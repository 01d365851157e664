"""Read the text of `sqlbeat_database_url`. Opens nothing, and no error shows a secret."""

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata

from celery_sqlbeat.config import redaction, redis_url
from celery_sqlbeat.config.url_parts import ENCODE, Unreadable, hosts_of, options_of, user_of
from celery_sqlbeat.errors import SettingError

SETTING = "sqlbeat_database_url"
ALLOWED = (
    "write sqlite:///file.db, postgresql://user@host/database, mysql://user@host/database, mssql://host/database, "
    "mssql+odbc: followed by an ODBC connection string, redis://host:6379/0, rediss:// or memory://"
)
STORES = "celery_sqlbeat.stores"
"""The group of entry points by which other packages add stores: a scheme, and its factory."""
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
    """One of "sqlite", "postgresql", "mysql", "mssql", "redis", "memory", or another's scheme."""
    name: str
    """Of the database on its server, a number in Redis; on SQLite its file, or "" for none."""
    user: str | None = None
    password: str | None = None
    hosts: tuple[tuple[str, int | None], ...] = ()
    """More than one on PostgreSQL, MySQL and Redis only; the sentinels where there are some."""
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
        """Whether the database is in one process, so that no other one can see it."""
        return self.database == "memory" or (self.database == "sqlite" and self.name == "")

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
    except Unreadable as refusal:
        reason = str(refusal)
    raise SettingError(SETTING, redaction.masked(text), reason)  # here, so that no context has a secret


def other_schemes() -> dict[str, metadata.EntryPoint]:
    """Return the schemes of stores that other packages have added."""
    return {point.name.lower(): point for point in metadata.entry_points(group=STORES)}


def _read(text: str) -> DatabaseUrl:
    if not text.isprintable() or text != text.strip() or len(text) > redaction.LONGEST:
        raise Unreadable("it is too long, or holds a line end, a control character or a blank at its ends")
    if text.lower().startswith(redaction.ODBC):
        return _read_odbc(text)
    scheme = text.partition(":")[0].lower()
    if scheme not in _READERS:
        if scheme in (others := other_schemes()):
            return DatabaseUrl(text, scheme, "")  # its factory reads the rest
        known = ", ".join(f"{name}://" for name in (*_READERS, *others))
        raise Unreadable(f"no kind of database that is known, as {known} are; {ALLOWED}")
    form, read = _READERS[scheme]
    parts = redaction.split_url(text)
    if parts is None:
        raise Unreadable(form)
    return read(text, parts)


_SQLITE = "write sqlite:///file.db (relative) or sqlite:////var/lib/file.db (absolute), and ? # % as %3F %23 %25"
_POSTGRESQL = f"write postgresql://user:password@host:port/database?sslmode=require; {ENCODE}"
_MSSQL = f"write mssql://user:password@host:port/instance/database?Encrypt=yes; {ENCODE}"
_MYSQL = f"write mysql://user:password@host:port/database?ssl_mode=verify_identity&ssl_ca=/ca.pem; {ENCODE}"
_MEMORY = "write memory:// or memory://name"
_NO_OPTIONS = frozenset(["server", "address", "addr", "database", "uid", "user", "pwd", "password", "dsn", "filedsn"])


def _read_sqlite(text: str, parts: redaction.Parts) -> DatabaseUrl:
    path = urllib.parse.unquote(parts.path[1:])
    names_a_file = path and not path.endswith("/") and "\0" not in path
    if parts.query or (parts.path and not names_a_file):
        raise Unreadable(_SQLITE)
    return DatabaseUrl(text, "sqlite", "" if path == ":memory:" else path)


def _read_postgresql(text: str, parts: redaction.Parts) -> DatabaseUrl:
    name = urllib.parse.unquote(parts.path[1:])
    options = options_of(parts.query)
    if "/" in parts.path[1:] or not (name or options.keys() & {"dbname", "service"}):
        raise Unreadable(f"it does not name one database; {_POSTGRESQL}")
    return DatabaseUrl(text, "postgresql", name, *user_of(parts), hosts_of(parts.hosts), options=options)


def _read_mysql(text: str, parts: redaction.Parts) -> DatabaseUrl:
    name = urllib.parse.unquote(parts.path[1:])
    if not name or "/" in parts.path[1:]:
        raise Unreadable(f"it does not name one database; {_MYSQL}")
    options = options_of(parts.query)
    if unknown := options.keys() - MYSQL_OPTIONS:
        raise Unreadable(f"{min(unknown)} is no option; they are {', '.join(sorted(MYSQL_OPTIONS))}; {_MYSQL}")
    if options.get("ssl_mode", TLS_MODES[0]) not in TLS_MODES:
        raise Unreadable(f"ssl_mode is one of {', '.join(TLS_MODES)}")
    if options.get("ssl_mode") in TLS_MODES[:2] and options.keys() & {"ssl_ca", "ssl_cert", "ssl_key"}:
        raise Unreadable(f"ssl_mode={options['ssl_mode']} looks at no certificate")
    hosts = hosts_of(parts.hosts)
    if "unix_socket" in options and any(host for host, _ in hosts):
        raise Unreadable(f"it names both a host and a unix_socket; {_MYSQL}")
    return DatabaseUrl(text, "mysql", name, *user_of(parts), hosts, options=options)


def _read_mssql(text: str, parts: redaction.Parts) -> DatabaseUrl:
    hosts = hosts_of(parts.hosts)
    *instance, name = (urllib.parse.unquote(part) for part in parts.path[1:].split("/"))
    if len(hosts) != 1 or not hosts[0][0] or len(instance) > 1 or not all([*instance, name]):
        raise Unreadable(f"it does not name one host and one database; {_MSSQL}")
    options = options_of(parts.query)
    for option in options:
        if option.lower() in _NO_OPTIONS:
            raise Unreadable(f"{option} is no option; {_MSSQL}")
    _check_identity(options, has_login=parts.userinfo is not None)
    return DatabaseUrl(text, "mssql", name, *user_of(parts), hosts, instance[0] if instance else None, options)


def _read_redis(text: str, parts: redaction.Parts) -> DatabaseUrl:
    number, options = redis_url.number_and_options(parts)
    return DatabaseUrl(text, "redis", number, *user_of(parts), hosts_of(parts.hosts), options=options)


def _read_memory(text: str, parts: redaction.Parts) -> DatabaseUrl:
    if parts.userinfo is not None or parts.path or parts.query or "," in parts.hosts:
        raise Unreadable(_MEMORY)
    hosts = hosts_of(parts.hosts)
    return DatabaseUrl(text, "memory", hosts[0][0] if hosts else "")


_READERS = {
    "sqlite": (_SQLITE, _read_sqlite),
    "postgresql": (_POSTGRESQL, _read_postgresql),
    "postgres": (_POSTGRESQL, _read_postgresql),
    "mysql": (_MYSQL, _read_mysql),
    "mariadb": (_MYSQL, _read_mysql),
    "mssql": (_MSSQL, _read_mssql),
    "redis": (redis_url.FORM, _read_redis),
    "rediss": (redis_url.FORM, _read_redis),
    "memory": (_MEMORY, _read_memory),
}


def _check_identity(options: Mapping[str, str], has_login: bool) -> None:
    given = {key.lower(): value for key, value in options.items()}
    named = {"identity", "client_id", "tenant_id"} & given.keys()
    if named and (has_login or given.keys() & {"authentication", "trusted_connection"}):
        raise Unreadable(f"{min(named)} is for addresses without a user, Authentication and Trusted_Connection")
    kind = given.get("identity", "default")
    if kind not in IDENTITIES:
        raise Unreadable(f"identity is one of {', '.join(IDENTITIES)}")
    if unknown := named - {"identity"} - IDENTITIES[kind]:
        raise Unreadable(f"{min(unknown)} says nothing about identity={kind}")


def _read_odbc(text: str) -> DatabaseUrl:
    string = text[len(redaction.ODBC) :]
    pairs = redaction.odbc_pairs(string)
    if not pairs:
        raise Unreadable(
            "no ODBC string: write Keyword=value;... with {} around a value that holds ; { or }, and } as }}"
        )
    values = {pair.key: pair.value for pair in reversed(pairs)}  # of two equal keywords ODBC takes the first
    host = values.get("server") or values.get("address") or values.get("addr")
    if not host and not values.keys() & {"dsn", "filedsn"}:
        raise Unreadable("its ODBC string names neither Server nor DSN")
    return DatabaseUrl(
        text=text,
        database="mssql",
        name=values.get("database", ""),
        user=values.get("uid") or values.get("user"),
        password=values.get("pwd") or values.get("password"),
        hosts=((host, None),) if host else (),
        odbc=string,
    )
