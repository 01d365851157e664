"""Hold a transaction on a connection of the shop: its own, or a part of the one that is open.

What is open stays open, and its owner commits it; what is begun here ends here. Where the shop's
library has a block of its own for that, it is that one.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from celery_sqlbeat.errors import UnusableConnection
from celery_sqlbeat.store.sql.foreign import ForeignSession, driver_connection, package_of

_NAME = "sqlbeat_guard"
_ENDED_INSIDE = (
    "the transaction was committed or rolled back inside of its block, so part of it may be there without the mark "
    "that it is done: leave the end to the block, or to whoever began the transaction"
)


class _Words(NamedTuple):
    """What a database calls the parts of a transaction."""

    begin: str
    save: str = f"SAVEPOINT {_NAME}"
    release: str = f"RELEASE SAVEPOINT {_NAME}"
    undo: str = f"ROLLBACK TO SAVEPOINT {_NAME}"


class _Driver(NamedTuple):
    """A driver whose transactions are led by statements."""

    words: _Words
    is_open: Callable[[Any], bool]
    begins_itself: Callable[[Any], bool]
    """Whether the driver begins a transaction with the next statement."""


def _is_counted(connection: Any) -> bool:
    cursor = connection.cursor()
    [(count,)] = cursor.execute("SELECT @@TRANCOUNT").fetchall()
    cursor.close()
    return bool(count)


def _waits_for_commit(connection: Any) -> bool:
    return not connection.autocommit


_DRIVERS: Mapping[str, _Driver] = {
    "sqlite3": _Driver(_Words("BEGIN IMMEDIATE"), lambda connection: bool(connection.in_transaction), lambda _: False),
    # SERVER_STATUS_IN_TRANS of MySQL's protocol.
    "pymysql": _Driver(
        _Words("START TRANSACTION"), lambda connection: bool(connection.server_status & 1), lambda _: False
    ),
    # 0: PQTRANS_IDLE of libpq.
    "psycopg2": _Driver(
        _Words("BEGIN"), lambda connection: bool(connection.info.transaction_status), _waits_for_commit
    ),
    "pyodbc": _Driver(
        _Words("BEGIN TRANSACTION", f"SAVE TRANSACTION {_NAME}", "", f"ROLLBACK TRANSACTION {_NAME}"),
        _is_counted,
        _waits_for_commit,
    ),
}


Last = Callable[[ForeignSession], object]


@contextlib.contextmanager
def transaction_on(connection: Any, using: str | None, last: Last) -> Iterator[ForeignSession]:
    """Give a session in a transaction: it commits where it was begun here; a raise undoes all.

    `last` is called in it after the block, unless somebody has ended the transaction by then.
    """
    package = package_of(connection)
    if using is not None or package == "django":
        yield from _in_django(connection, using, last)
    elif package == "sqlalchemy" and hasattr(connection, "begin_nested"):
        yield from _in_sqlalchemy(connection, last)
    else:
        session = ForeignSession(driver := driver_connection(connection))
        package = package_of(driver)
        if package == "psycopg":
            with driver.transaction():
                yield session
                last(session)
        elif package in _DRIVERS:
            yield from _by_statements(driver, session, _DRIVERS[package], last)
        else:
            raise UnusableConnection(
                f"a connection of {package} does not tell whether a transaction is open: give Django's (using=), or "
                "SQLAlchemy's"
            )


def _in_django(connection: Any, using: str | None, last: Last) -> Iterator[ForeignSession]:
    alias = connection.alias if using is None else using
    driver = driver_connection(connection, using)
    from django.db import transaction

    with transaction.atomic(using=alias):
        yield (session := ForeignSession(driver))
        last(session)


def _in_sqlalchemy(connection: Any, last: Last) -> Iterator[ForeignSession]:
    is_open = connection.in_transaction()
    if is_open:
        _begun(connection)  # before its savepoint, which would be the transaction itself
    with connection.begin_nested() if is_open else connection.begin() as transaction:
        yield (session := _begun(connection))
        if not transaction.is_active:
            raise UnusableConnection(_ENDED_INSIDE)
        last(session)


def _begun(connection: Any) -> ForeignSession:
    """Return a session in the transaction of SQLAlchemy, which must be one of the database, too."""
    session = ForeignSession(driver := driver_connection(connection))
    session.begin_late()
    autocommit = getattr(driver, "get_autocommit", lambda: getattr(driver, "autocommit", False))()
    if autocommit is True or (session.database == "sqlite" and not driver.in_transaction):
        raise UnusableConnection(
            "the connection of SQLAlchemy commits each statement (AUTOCOMMIT), so nothing can be undone with it: give "
            "one of another isolation level"
        )
    return session


def _by_statements(connection: Any, session: ForeignSession, driver: _Driver, last: Last) -> Iterator[ForeignSession]:
    is_own = not driver.is_open(connection)
    by_statement = is_own and not driver.begins_itself(connection)
    if by_statement:
        _run(connection, driver.words.begin)
    try:
        with _undone(connection, driver, is_own):
            yield session
        with _undone(connection, driver, is_own):
            last(session)
        if is_own:
            _run(connection, "COMMIT") if by_statement else connection.commit()
    except BaseException:
        if is_own:
            with contextlib.suppress(Exception):  # a lost connection has rolled back; what was raised says more
                _run(connection, "ROLLBACK") if by_statement else connection.rollback()
        raise


@contextlib.contextmanager
def _undone(connection: Any, driver: _Driver, is_own: bool) -> Iterator[None]:
    """Set a savepoint, which a raise leads back to; it is gone where somebody has committed."""
    _run(connection, driver.words.save)
    try:
        yield
    except BaseException:
        if not is_own:
            _run(connection, driver.words.undo)
        raise
    _release(connection, driver)


def _release(connection: Any, driver: _Driver) -> None:
    """Give the savepoint up, which is gone where somebody ended the transaction meanwhile."""
    if not driver.is_open(connection):
        raise UnusableConnection(_ENDED_INSIDE)
    if not driver.words.release:
        return
    try:
        _run(connection, driver.words.release)
    except Exception as error:
        raise UnusableConnection(_ENDED_INSIDE) from error


def _run(connection: Any, statement: str) -> None:
    cursor = connection.cursor()
    cursor.execute(statement)
    cursor.close()
