"""Whether a pooler stands before a PostgreSQL server, and what its clients share. For a check."""

from collections.abc import Callable
from contextlib import ExitStack, closing

import psycopg

from celery_sqlbeat.store.postgresql import PooledSession, PostgresqlSession

TRANSACTIONS, SESSIONS = "transactions", "sessions"
_LOOKS = 5  # where server connections are given in turn, not every look meets another one


def pooling(connect: Callable[[], PostgresqlSession]) -> str | None:
    """Say what a pooler gives its clients: transactions, or sessions where nothing else is seen; None: there is none.

    Whoever has a server connection for its own keeps it, and nobody else has it meanwhile.
    """
    with ExitStack() as stack:
        first = stack.enter_context(closing(connect()))
        if not isinstance(first, PooledSession):
            return None
        own = first.server()
        try:
            second = stack.enter_context(closing(connect()))
            for _ in range(_LOOKS):
                second.begin()
                if second.server() == own or first.server() != own:
                    return TRANSACTIONS
                second.rollback()
        except psycopg.OperationalError:  # no further server connection is free
            pass
        return SESSIONS
