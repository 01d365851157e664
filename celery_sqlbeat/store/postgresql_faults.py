"""What PostgreSQL's errors mean: by SQLSTATE, and by the text of those that have none."""

import re

import psycopg

from celery_sqlbeat.store.faults import Fault, by_state

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
# A refused connection has no SQLSTATE, only the server's text. In another language than English it is taken for lost.
_REFUSED = re.compile(
    r'authentication failed|(role|database|user) ".*" does not exist|no pg_hba\.conf entry|no password supplied'
    r"|not permitted to log in|permission denied for database|no such (database|user)"
)
_CROWDED = re.compile(r"too many (clients|connections)|connection slots are reserved")
_BEYOND = "timestamp too"  # the driver's own text; it has no SQLSTATE


def is_beyond_the_calendar(error: psycopg.Error) -> bool:
    """Whether the driver read an instant that Python has no datetime for."""
    return str(error).startswith(_BEYOND)


def fault_of(error: psycopg.Error) -> Fault:
    """By SQLSTATE; an error without one comes from libpq, which lost the connection or got none, or from the driver."""
    if error.sqlstate is not None:
        return by_state(STATES, error.sqlstate)
    if is_beyond_the_calendar(error):
        return Fault.TRANSIENT
    if not isinstance(error, psycopg.OperationalError):
        return Fault.FATAL if isinstance(error, (psycopg.ProgrammingError, psycopg.DataError)) else Fault.UNKNOWN
    if _REFUSED.search(str(error)):
        return Fault.FATAL
    return Fault.THROTTLED if _CROWDED.search(str(error)) else Fault.LOST
