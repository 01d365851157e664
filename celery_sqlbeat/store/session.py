"""What the store asks of a database: sessions that run named blocks. One small module per database implements it."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol

from celery_sqlbeat.store.faults import Fault

Row = tuple[Any, ...]
Rows = Sequence[Sequence[Any]]

_INSTANT = re.compile(r"(at|now|scheduledfor|lastslot|nextruntime|lastruntime|ranuntil)$", re.IGNORECASE)


class Session(Protocol):
    """One connection and its transaction. A session is used by one thread at a time."""

    def begin(self) -> None:
        """Begin a transaction that writes."""

    def commit(self) -> None:
        """Commit it. An error here may mean that it did commit."""

    def rollback(self) -> None:
        """Undo it."""

    def fetch(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> list[Row]:
        """Run a named block and return what it gives; instants are aware datetimes in UTC."""

    def script(self, text: str) -> None:
        """Run a script of several statements, for migrations."""

    def migration_lock(self) -> None:
        """Keep every other migration out until the transaction ends."""

    def close(self) -> None:
        """Close the connection; never raises."""


class AskedSession(Session, Protocol):
    """A session of a database that answers later."""

    def ask(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> Callable[[], list[Row]]:
        """Send a named block and go on; what is returned waits for what it gives, before anything else is asked."""

    def is_answered(self) -> bool:
        """Take what has come of the answer, without waiting for more. Whether that is all."""

    @property
    def file(self) -> int:
        """What can be read when something comes."""


class Dialect(Protocol):
    """One kind of database at one address."""

    @property
    def name(self) -> str:
        """The database, as `sql/` names its folder."""

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        """What the driver raises; every other error is passed on as it is."""

    @property
    def single_statements_commit(self) -> bool:
        """Whether a single statement needs no transaction around it."""

    @property
    def answers_later(self) -> bool:
        """Whether its sessions can be asked, and waited for later."""

    @property
    def sessions_survive_fork(self) -> bool:
        """Whether a child process may forget its parent's sessions; else they are closed before it is forked."""

    @property
    def at_once(self) -> frozenset[str]:
        """Blocks that this database has for what others do in several."""

    def connect(self) -> Session:
        """Open a session, or raise the driver's error."""

    def is_spent(self, session: Any) -> bool:
        """Whether a session of this dialect must not be lent again, although nothing is wrong with it."""

    def classify(self, error: BaseException) -> Fault:
        """Say what an error of the driver means."""

    def explain(self, error: BaseException) -> str:
        """The error's text in one line, without secrets."""


Clock = Callable[[], datetime]


@lru_cache(maxsize=512)  # a few per block
def instant_positions(names: tuple[str, ...]) -> tuple[int, ...]:
    """Which of the result's columns hold instants, by their names."""
    return tuple(at for at, name in enumerate(names) if _INSTANT.search(name))
