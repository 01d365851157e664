"""Put the verbs together that a store of rows has, on whatever place keeps the rows."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import partial

from celery_sqlbeat.model import Claimable, DueBatch
from celery_sqlbeat.store.keyvalue.claims import Claims
from celery_sqlbeat.store.keyvalue.deadlines import Deadlines
from celery_sqlbeat.store.keyvalue.due import DueReader
from celery_sqlbeat.store.keyvalue.history import History
from celery_sqlbeat.store.keyvalue.identity import Identity
from celery_sqlbeat.store.keyvalue.job_writes import JobWriter
from celery_sqlbeat.store.keyvalue.jobs import JobQuestions
from celery_sqlbeat.store.keyvalue.locks import LockRegister
from celery_sqlbeat.store.keyvalue.nodes import NodeRegister
from celery_sqlbeat.store.keyvalue.one_offs import OneOffs
from celery_sqlbeat.store.keyvalue.releases import ReleaseRegister
from celery_sqlbeat.store.keyvalue.rows import Place
from celery_sqlbeat.store.keyvalue.runs import Runs
from celery_sqlbeat.store.records import ALL_JOBS, EVERY_SHARE, Guard, NextDeadlines, Remark


def _nothing_to_remark() -> Sequence[Remark]:
    return ()


class KeyValueStore:
    """One namespace, kept in one place; see the protocol `Store` for the verbs."""

    def __init__(
        self, place: Place, namespace: str = "default", remarks: Callable[[], Sequence[Remark]] = _nothing_to_remark
    ) -> None:
        """Keep everything in a place. `remarks` tells what `check` says of the server."""
        self.namespace = namespace
        self.place = place
        self._remarks = remarks
        deadlines, runs = Deadlines(place), Runs(place)
        claims = Claims(place, partial(runs.finish, guard=Guard.UNSTARTED))
        self._deadlines, self._due_reader, self._claims = deadlines, DueReader(place), claims
        self.pulse, self.expired = deadlines.pulse, deadlines.expired
        self.claim, self.mark_published, self.postpone = claims.claim, claims.mark_published, claims.postpone
        self.release_orphan_locks = claims.release_orphan_locks
        self.start, self.extend, self.finish = runs.start, runs.extend, runs.finish
        self.note_runs, self.unended_results = runs.note_runs, runs.unended_results
        questions, writer, history = JobQuestions(place), JobWriter(place, runs.finish), History(place)
        self.jobs, self.counts, self.running = questions.jobs, questions.counts, questions.running
        self.write_jobs, self.enqueue = writer.write_jobs, writer.enqueue
        self.runs, self.purge = history.runs, history.purge
        one_offs = OneOffs(place)
        self.submit, self.cancel = one_offs.submit, one_offs.cancel
        register, releases, identity = NodeRegister(place), ReleaseRegister(place), Identity(place)
        self.heartbeat, self.nodes, self.tasks = register.heartbeat, register.nodes, register.tasks
        locks = LockRegister(place)
        self.take_lock, self.extend_locks = locks.take_lock, locks.extend_locks
        self.release_locks, self.locks = locks.release_locks, locks.locks
        self.newest_release, self.living = releases.newest_release, releases.living
        self.code_state, self.import_code, self.adopt = releases.code_state, releases.import_code, releases.adopt
        self.migrate, self.check_schema, self.recover = identity.migrate, identity.check_schema, identity.recover

    def next_deadlines(self, claimable: Claimable = ALL_JOBS, after: datetime | None = None) -> NextDeadlines:
        """Return the earliest instants at which some beat has something to do."""
        self._claims.release_unanswered()
        return self._deadlines.next_deadlines(claimable, after)

    def due(
        self, batch_size: int, claimable: Claimable = ALL_JOBS, share: str = EVERY_SHARE, besides: Collection[str] = ()
    ) -> DueBatch:
        """Read due jobs, of extra slots first."""
        self._claims.release_unanswered()
        return self._due_reader.due(batch_size, claimable, share, besides)

    def remarks(self) -> list[Remark]:
        """Return what `check` says of the place: what it may lose, and what is set wrongly."""
        return list(self._remarks())

    def close(self) -> None:
        """Close the idle connections."""
        self.place.close()
