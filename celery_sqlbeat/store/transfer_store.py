"""Writes jobs that come from elsewhere, a batch in one transaction: all of it or nothing."""

from collections.abc import Sequence

from celery_sqlbeat.model import JobArrival, JobChange
from celery_sqlbeat.store.admin_store import changed_facts
from celery_sqlbeat.store.database import Database
from celery_sqlbeat.store.session import Session


class SqlTransferStore:
    """The TransferStore of one namespace in a SQL database."""

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace

    def place(self, arrivals: Sequence[JobArrival], changes: Sequence[JobChange]) -> set[str]:
        if not arrivals and not changes:
            return set()

        def work(session: Session) -> None:
            late = self._add(session, arrivals) if arrivals else set()
            late |= {change.draft.job_name for change in changes if not self._change(session, change)}
            if late:
                raise _Late(late)  # out of the transaction, which undoes it
            session.fetch("bump_changes", namespace=self._namespace)

        try:
            self._database.write(work)
        except _Late as late:
            return late.names
        return set()

    def _add(self, session: Session, arrivals: Sequence[JobArrival]) -> set[str]:
        found = session.fetch("insert_jobs", [one.draft for one in arrivals], namespace=self._namespace)
        late = {one.draft.job_name for one in arrivals} - {row[0] for row in found}
        notes = [
            (one.draft.job_name, one.last_run_time, one.disabled_reason)
            for one in arrivals
            if one.last_run_time is not None or one.disabled_reason is not None
        ]
        if notes and not late:
            session.fetch("note_arrivals", notes, namespace=self._namespace)
        return late

    def _change(self, session: Session, change: JobChange) -> bool:
        found = session.fetch("update_job", namespace=self._namespace, **changed_facts(change))
        if found and change.gap is not None:
            session.fetch("insert_gaps", [change.gap])
        return bool(found)


class _Late(Exception):  # never leaves this module
    def __init__(self, names: set[str]) -> None:
        super().__init__(names)
        self.names = names
