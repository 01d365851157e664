"""Connect to PostgreSQL: settings of a connection, patience with an answer, classes of errors."""

import contextlib
import re
import selectors
from collections.abc import Generator, Mapping
from typing import Any, NoReturn

import psycopg
from psycopg import sql

from celery_sqlbeat import environment
from celery_sqlbeat.store.faults import Fault
from celery_sqlbeat.store.sql.faults import by_state
from celery_sqlbeat.store.sql.session import Row

GREETING = b"""
SELECT
    pg_backend_pid() = $3 AS IsOurs,
    pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' AS IsReadOnly,
    (
        SELECT count(set_config(s.name, s.value, false))
        FROM unnest($1::text[], $2::text[]) AS s (name, value)
        WHERE pg_backend_pid() = $3
    ) AS Settings
"""
"""The first statement of a connection; it makes the settings if the connection is ours.

A server tells its process's number when a connection is made. A pooler tells one of its own making,
since it hands the connection to whichever server process is free: what is set there would stay, and
reach others.
"""


def settings(milliseconds: int) -> dict[str, str]:
    """Return the settings for statements that may take this long.

    Our statements go by key and in batches: without statistics (new tables) the planner would read
    whole tables, lock in their order, and sort all that is due before it takes the first of it.
    """
    return {
        "statement_timeout": str(milliseconds),
        "lock_timeout": str(max(1, milliseconds // 2)),
        "idle_in_transaction_session_timeout": str(4 * milliseconds),
        "jit": "off",
        "enable_seqscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "enable_sort": "off",
    }


def of_session(milliseconds: int, name: str | None = None) -> dict[str, str]:
    """Return the settings of a connection of our own, also those that can be set only there.

    `name`: the application name in the address.
    """
    return {
        **settings(milliseconds),
        # Not told when a connection is made: a pooler would leave our name on the server's
        # connection.
        "application_name": name or "celery-sqlbeat",
        "timezone": "UTC",
        # Prepared statements. The batches are arrays, of which a plan made for one of them knows
        # nothing either.
        "plan_cache_mode": "force_generic_plan",
    }


def of_transaction(milliseconds: int) -> bytes:
    """Return the statement that makes the settings for one transaction."""
    return _local(settings(milliseconds)).encode()


def _local(values: Mapping[str, str]) -> str:
    calls = (f"set_config({_quoted(name)}, {_quoted(value)}, true)" for name, value in values.items())
    return f"SELECT {', '.join(calls)}; "


def _quoted(text: str) -> str:
    return sql.Literal(text).as_string(None)


class Patient(psycopg.Connection[Row]):
    """A connection that gives up a server that is frozen and ignores its statement_timeout."""

    patience = 10.0  # seconds; the dialect sets it

    def wait(self, gen: Generator[Any, Any, Any], *_: Any, **__: Any) -> Any:
        """Wait as psycopg does, but not for ever.

        The state of the session is then unknown; it is not used again.
        """
        try:
            self._drive(gen, next(gen), environment.monotonic() + self.patience)
        except StopIteration as done:
            return done.value
        except BaseException:
            # A pipeline that is given up would still read what is left, of a lost connection.
            with contextlib.suppress(psycopg.Error, RuntimeError):
                gen.close()
            raise

    def _drive(self, gen: Generator[Any, Any, Any], events: int, end: float) -> NoReturn:
        """Advance the exchange until it ends, by a StopIteration with its result."""
        with _selector() as selector:
            selector.register(self.pgconn.socket, events)
            while True:
                ready = selector.select(max(0.0, end - environment.monotonic()))
                if not ready and environment.monotonic() >= end:
                    self._give_up()
                if ready:
                    wanted = gen.send(ready[0][1])
                    if wanted != events:
                        selector.modify(self.pgconn.socket, events := wanted)

    def _give_up(self) -> NoReturn:
        self.pgconn.finish()
        raise psycopg.OperationalError(f"no answer within {self.patience:g} s")


def _selector() -> selectors.BaseSelector:
    """Return a selector other than epoll, whose four calls each wait for Python's lock."""
    usual = selectors.DefaultSelector
    return selectors.PollSelector() if usual is getattr(selectors, "EpollSelector", None) else usual()


# https://www.postgresql.org/docs/current/errcodes-appendix.html; the longest prefix decides.
STATES = {
    "40001": Fault.DEADLOCK,  # serialization_failure
    "40P01": Fault.DEADLOCK,  # deadlock_detected
    "55P03": Fault.TRANSIENT,  # lock_not_available: our lock_timeout
    "57014": Fault.TRANSIENT,  # query_canceled: our statement_timeout; the statement was undone
    "25P03": Fault.LOST,  # idle_in_transaction_session_timeout
    "25006": Fault.LOST,  # read_only_sql_transaction: this server became a standby
    "53": Fault.THROTTLED,  # insufficient resources: connections, memory, disk
    "57P": Fault.LOST,  # shut down, crashed, or starting up
    "08": Fault.LOST,
    "08007": Fault.AMBIGUOUS,  # transaction_resolution_unknown
    "40003": Fault.AMBIGUOUS,  # statement_completion_unknown
    "58030": Fault.LOST,  # io_error
    "23505": Fault.CONFLICT,
    # What stands in a row.
    "22": Fault.REFUSED,  # a value that its type does not take
    "23": Fault.REFUSED,  # a constraint
    "44": Fault.REFUSED,  # the check of a view
    "54": Fault.REFUSED,  # beyond a limit, as a value too long for an index
    "P0001": Fault.REFUSED,  # raise_exception: a trigger's own
    # What can never succeed as it is.
    "0LP01": Fault.FATAL,  # invalid_grant_operation
    "21": Fault.FATAL,  # cardinality violation
    "28": Fault.FATAL,  # who is not let in
    "3D000": Fault.FATAL,  # no such database
    "3F000": Fault.FATAL,  # no such schema
    "42": Fault.FATAL,  # syntax, a missing table or column, rights
    "42P05": Fault.UNKNOWN,  # duplicate_prepared_statement: somebody else's connection behind a pooler; a new one helps
}
# A refused connection has no SQLSTATE, only the server's text. In another language than English it
# is taken for lost.
_REFUSED = re.compile(
    r'authentication failed|(role|database|user) ".*" does not exist|no pg_hba\.conf entry|no password supplied'
    r"|not permitted to log in|permission denied for database|no such (database|user)"
)
_CROWDED = re.compile(r"too many (clients|connections)|connection slots are reserved")
_BEYOND = "timestamp too"  # the driver's own text; it has no SQLSTATE


def is_beyond_the_calendar(error: psycopg.Error) -> bool:
    """Return whether the driver read an instant that Python has no datetime for."""
    return str(error).startswith(_BEYOND)


def fault_of(error: psycopg.Error) -> Fault:
    """Classify an error by its SQLSTATE, or by its text.

    One without a SQLSTATE comes from libpq, which lost the connection or got none, or from the
    driver.
    """
    if error.sqlstate is not None:
        return by_state(STATES, error.sqlstate)
    if is_beyond_the_calendar(error):
        return Fault.TRANSIENT
    if not isinstance(error, psycopg.OperationalError):
        return Fault.FATAL if isinstance(error, (psycopg.ProgrammingError, psycopg.DataError)) else Fault.UNKNOWN
    if _REFUSED.search(str(error)):
        return Fault.FATAL
    return Fault.THROTTLED if _CROWDED.search(str(error)) else Fault.LOST
