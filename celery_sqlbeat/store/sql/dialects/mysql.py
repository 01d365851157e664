"""MySQL and MariaDB through PyMySQL: how to connect, and a session.

PyMySQL is pure Python: it needs no compiler, and it waits in gevent's loop.
"""

import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import pymysql
from pymysql.constants import CLIENT, FIELD_TYPE

from celery_sqlbeat.config.database_url import DatabaseUrl
from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.store.faults import READ_ONLY, Fault
from celery_sqlbeat.store.sql.dialects.mysql_faults import fault_of, told
from celery_sqlbeat.store.sql.dialects.mysql_text import CLOCK, has_several, packet
from celery_sqlbeat.store.sql.dialects.sqlite_values import instant_of
from celery_sqlbeat.store.sql.session import Block, Call, Row, Rows, load_with_clock

Connection: TypeAlias = "pymysql.Connection[Any]"

OLDEST = {"MySQL": (8, 0, 19), "MariaDB": (10, 6, 0)}  # SKIP LOCKED and JSON_TABLE
_IDLE_SECONDS = 28_800  # for which the server keeps an idle session: its own default, whatever it was set to
# A migration of large tables may take long, and the others wait for it.
_MIGRATION_SECONDS = 86_400.0
# What ends a statement; MySQL has it for reads alone, in milliseconds.
_LIMITS = {"MySQL": ("max_execution_time = {:.0f}", 1000), "MariaDB": ("max_statement_time = {:.3f}", 1)}
_LOCK_BLOCKS = frozenset({"migration_lock", "lock_releases"})
_DECODERS: dict[Any, Any] = {
    **dict.fromkeys((FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP), instant_of),
    **dict.fromkeys((FIELD_TYPE.TINY, FIELD_TYPE.SHORT, FIELD_TYPE.LONG, FIELD_TYPE.LONGLONG, FIELD_TYPE.INT24), int),
    FIELD_TYPE.NEWDECIMAL: int,  # sums of whole numbers
    FIELD_TYPE.DOUBLE: float,
}
# The server's greeting of a connection, and what a session relies on.
_SETTINGS = """
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,PIPES_AS_CONCAT', time_zone = '+00:00',
    innodb_lock_wait_timeout = {lock_seconds}, wait_timeout = {idle_seconds}, {limit},
    group_concat_max_len = @@max_allowed_packet;
SELECT @@global.read_only OR @@innodb_read_only, @@max_allowed_packet
"""


class MysqlSession:
    """A session on a connection of our own."""

    def __init__(self, connect: Callable[[float], Connection], seconds: float, blocks: Mapping[str, Block]) -> None:
        self._connect = connect
        self._seconds = seconds
        self._connection = connect(seconds)
        self._blocks = blocks
        self._longest = 1 << 20  # bytes of a packet; the server says more
        self._in_transaction = False
        self._begins = False
        self._has_lock = False
        self._migrates = False

    def begin(self) -> None:
        """Begin a transaction; the server learns of it with the first statement."""
        self._in_transaction = self._begins = True

    def commit(self) -> None:
        """Commit the transaction."""
        self._end("COMMIT")

    def rollback(self) -> None:
        """Roll back the transaction, also that of a block by itself."""
        self._begins = False
        self._end("ROLLBACK")

    def fetch(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> list[Row]:
        """Run a block and return its rows."""
        block = self._blocks[name]
        text = packet(block, rows, scalars)
        if not self._in_transaction and has_several(block):
            text = f"START TRANSACTION; {text}; COMMIT"
        answer = self._run(text)
        if name in _LOCK_BLOCKS:
            self._has_lock = True
            if answer[0][0] != 1:
                raise pymysql.OperationalError(1205, f"{name}: somebody else holds this lock for too long")
        return answer

    def fetch_together(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Run blocks one after the other."""
        return [self.fetch(call.block, call.rows, **call.scalars) for call in calls]

    def script(self, text: str) -> None:
        """Run a text of several statements."""
        self._run(text)

    def migration_lock(self) -> None:
        """Wait for the lock that lets one process migrate at a time."""
        self._migrates = True
        self._reconnect(_MIGRATION_SECONDS)
        self.fetch("migration_lock")

    def _reconnect(self, seconds: float) -> None:
        """Go on with a connection whose statements may take this long."""
        self.close()
        self._connection = self._connect(seconds)
        begins, self._begins = self._begins, False
        self.greet(seconds)
        self._begins = begins

    def greet(self, seconds: float) -> None:
        """Make the settings for statements that may take this long.

        A server that is too old, or that can only be read, is refused.
        """
        told: str = self._connection.get_server_info()  # type: ignore[no-untyped-call]
        told = told.removeprefix("5.5.5-")  # MariaDB's, for old replicas
        kind = "MariaDB" if "mariadb" in told.lower() else "MySQL"
        if tuple(map(int, re.findall(r"\d+", told)[:3])) < OLDEST[kind]:
            oldest = " or ".join(f"{name} {'.'.join(map(str, least))}" for name, least in OLDEST.items())
            raise StoreError(f"{kind} {told} is too old: use {oldest}, or later")
        limit, unit = _LIMITS[kind]
        [(is_read_only, longest)] = self._run(
            _SETTINGS.format(
                lock_seconds=max(1, round(seconds / 2)), idle_seconds=_IDLE_SECONDS, limit=limit.format(unit * seconds)
            )
        )
        if is_read_only:
            host = self._connection.get_host_info()
            raise ReplicaOnly(1290, f"the server at {host} {READ_ONLY}: it is a replica, or set to read_only")
        self._longest = int(longest)

    def close(self) -> None:
        """Close the connection; never raises."""
        if self._connection.open:
            self._connection.close()

    def _end(self, how: str) -> None:
        if not self._begins:
            self._run(how)
        self._in_transaction = self._begins = False
        has_lock, self._has_lock = self._has_lock, False
        if self._migrates:  # a lock goes with its connection
            self._migrates = False
            self._reconnect(self._seconds)
        elif has_lock:
            self._run("DO RELEASE_ALL_LOCKS()")

    def _run(self, text: str) -> list[Row]:
        """Send a text and return the rows of its last result."""
        if self._begins:
            text = f"START TRANSACTION; {text}"
        if 4 * len(text) > self._longest < len(text.encode()):
            raise pymysql.DataError(1153, f"a statement is longer than max_allowed_packet, {self._longest} bytes")
        rows: list[Row] = []
        with self._connection.cursor() as cursor:
            cursor.execute(text)
            self._begins = False
            while True:
                if cursor.description:
                    rows = list(cursor.fetchall())
                if not cursor.nextset():
                    return rows


class Mysql:
    """A MySQL or MariaDB database. A test may give another expression for the server's clock."""

    name = "mysql"
    errors = (pymysql.Error,)
    single_statements_commit = True
    sessions_survive_fork = True
    at_once: frozenset[str] = frozenset()

    def __init__(
        self,
        url: DatabaseUrl,
        statement_timeout: float = 5.0,
        clock: str = CLOCK,
        connect: Callable[..., Connection] = pymysql.connect,
    ) -> None:
        self._url = url
        self._timeout = statement_timeout
        self.blocks = load_with_clock(self.name, CLOCK, clock)
        self._connect = connect

    def connect(self) -> MysqlSession:
        """Open a session to the first host that can be written to, or raise the driver's error."""
        failure: pymysql.Error | None = None
        for host, port in self._url.hosts or ((None, None),):
            try:
                return self._session(host, port)
            except pymysql.Error as error:
                failure = failure or error
        raise failure or StoreError(f"no host in {self._url}")

    def _session(self, host: str | None, port: int | None) -> MysqlSession:
        session = MysqlSession(partial(self._open, host, port), self._timeout, self.blocks)
        try:
            session.greet(self._timeout)
        except BaseException:
            session.close()
            raise
        return session

    def _open(self, host: str | None, port: int | None, seconds: float) -> Connection:
        return self._connect(
            host=host,
            port=port or 0,
            user=self._url.user,
            password=(self._url.password or "").encode(),
            database=self._url.name,
            unix_socket=self._url.options.get("unix_socket"),
            autocommit=True,
            charset="utf8mb4",
            collation="utf8mb4_bin",
            client_flag=CLIENT.MULTI_STATEMENTS,
            conv=_DECODERS,
            connect_timeout=max(1.0, self._timeout),
            # By then the server should have ended the statement.
            read_timeout=seconds + 1.0,
            write_timeout=seconds + 1.0,
            program_name="celery-sqlbeat",
            **_tls(self._url.options),
        )

    def is_spent(self, session: MysqlSession) -> bool:
        """Return whether a working session must not be used again."""
        return False

    def classify(self, error: BaseException) -> Fault:
        """Say what an error of the driver means."""
        return fault_of(error) if isinstance(error, pymysql.Error) else Fault.FATAL

    def explain(self, error: BaseException) -> str:
        """Return the error's text in one line, without secrets."""
        return self._url.mask(told(error))


class ReplicaOnly(pymysql.OperationalError):
    """The server can only be read."""


def _tls(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the driver's parameters for encryption.

    The context is ours: where the system's CAs are to be used, the driver's own checks no host.
    """
    mode = options.get("ssl_mode", "verify_ca" if "ssl_ca" in options else "preferred")
    if mode in ("disabled", "preferred"):  # the driver's own default is to prefer
        return {"ssl_disabled": True} if mode == "disabled" else {}
    context = ssl.create_default_context(cafile=options.get("ssl_ca"))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # which the certificates that MySQL makes for itself do not pass
    context.check_hostname = mode == "verify_identity"
    if mode == "required":
        context.verify_mode = ssl.CERT_NONE
    if "ssl_cert" in options:
        context.load_cert_chain(options["ssl_cert"], options.get("ssl_key"), options.get("ssl_key_password"))
    return {"ssl": context}
