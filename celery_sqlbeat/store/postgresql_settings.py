"""What a server is told before our statements: once on a connection of our own, else in each transaction."""

from collections.abc import Mapping

from psycopg import sql

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
"""The first statement of a connection, which makes the settings if the connection is ours: one round trip for both.

A server tells its process's number when a connection is made. A pooler tells one of its own making, since it hands the
connection to whichever server process is free: what is set there would stay, and reach others.
"""


def settings(milliseconds: int) -> dict[str, str]:
    """What holds for statements that may take so long.

    Our statements go by key and in batches: without statistics (new tables) the planner would read whole tables, lock
    in their order, and sort all that is due before it takes the first of it.
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
    """The same for a connection of our own, and what can be set only there. `name`: what the address calls us."""
    return {
        **settings(milliseconds),
        # Not told when a connection is made: a pooler would leave our name on the server's connection.
        "application_name": name or "celery-sqlbeat",
        "timezone": "UTC",
        # Prepared statements. The batches are arrays, of which a plan made for one of them knows nothing either.
        "plan_cache_mode": "force_generic_plan",
    }


def of_transaction(milliseconds: int) -> bytes:
    """The same as the first statement of a transaction, with which it ends."""
    return _local(settings(milliseconds)).encode()


def _local(values: Mapping[str, str]) -> str:
    each = (f"set_config({_quoted(name)}, {_quoted(value)}, true)" for name, value in values.items())
    return f"SELECT {', '.join(each)}; "


def _quoted(text: str) -> str:
    return sql.Literal(text).as_string(None)
