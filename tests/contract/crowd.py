"""What each process of a crowd does: claim whatever it can get, then start whatever it can.

Importable by a child.
"""

from collections.abc import Sequence
from datetime import datetime
from multiprocessing.synchronize import Barrier
from typing import NamedTuple

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.config.policy import Policies
from celery_sqlbeat.environment import Ids
from celery_sqlbeat.model import StartRequest
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store.sql.dialects.sqlite import Sqlite
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.session import Dialect
from celery_sqlbeat.store.sql.store import SqlStore
from tests.support.claiming import claim_due
from tests.support.views import BeatView, WorkerView

PATIENCE_SECONDS = 60.0  # a crowd on a small machine waits long for its turn
BATCH = 50

CLOCK = "(SELECT At FROM TestClock)"


class Meeting(NamedTuple):
    """Where a crowd meets.

    A database, the namespace, the instant by its clock, and the signal to begin.
    """

    database: str
    address: str
    namespace: str
    now: datetime
    barrier: Barrier

    def dialect(self) -> Dialect:
        url = database_url(self.address)
        if self.database == "sqlite":
            now = self.now
            return Sqlite(url, PATIENCE_SECONDS, clock=lambda: now)
        if self.database == "postgresql":
            from celery_sqlbeat.store.sql.dialects.postgresql import Postgresql

            return Postgresql(url, PATIENCE_SECONDS, clock=CLOCK)
        if self.database == "mysql":
            from celery_sqlbeat.store.sql.dialects.mysql import Mysql

            return Mysql(url, PATIENCE_SECONDS, clock=CLOCK)
        from celery_sqlbeat.store.sql.dialects.mssql import Mssql

        return Mssql(url, PATIENCE_SECONDS, clock=CLOCK)

    def store(self) -> SqlStore:
        """Return a store whose patience fits a crowd."""
        return SqlStore(Database(self.dialect(), patience=PATIENCE_SECONDS), self.namespace)


_here: list[Meeting] = []


def arrive(meeting: Meeting) -> None:
    """Remember where this process is: a barrier can be handed over only when a process begins."""
    _here.append(meeting)


def claim_all(name: str) -> list[StartRequest]:
    """Claim until nothing is due; what the messages of the claims would carry."""
    meeting, ids = _here[0], Ids()
    store, planner = meeting.store(), Planner(Rules(Policies(), "UTC", 120.0, 3), ids)
    beat = BeatView(store, name)
    meeting.barrier.wait(PATIENCE_SECONDS)
    found: list[StartRequest] = []
    while claims := claim_due(beat, planner, BATCH, 15.0).claims:
        left = claims
        while left:  # another beat's claim may look at the rows at this moment; then they are passed by
            busy = beat.mark_published([(claim, 120.0) for claim in left]).busy
            left = [claim for claim in left if claim.run_id in busy]
        found += [StartRequest(claim.run_id, claim.claim_id, claim.fence, "", 0) for claim in claims]
    store.close()
    return found


def start_all(name: str, messages: Sequence[StartRequest]) -> list[str]:
    """Try to start every message, each of which the others have too.

    Return the run ids that this process got.
    """
    meeting, ids = _here[0], Ids()
    store = meeting.store()
    worker = WorkerView(store, name)
    meeting.barrier.wait(PATIENCE_SECONDS)
    mine: list[str] = []
    for at in range(0, len(messages), BATCH):
        batch = [message._replace(start_id=ids.random_id()) for message in messages[at : at + BATCH]]
        mine += worker.start(batch)
    store.close()
    return mine
