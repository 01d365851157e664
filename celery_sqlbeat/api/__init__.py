"""Give a program the handle of an app, which connects when it is first used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from celery_sqlbeat import environment
from celery_sqlbeat.api.explain import Explanation, explain_job
from celery_sqlbeat.api.jobs import Jobs
from celery_sqlbeat.api.leader import Leader
from celery_sqlbeat.api.locks import Lock, Locks
from celery_sqlbeat.api.one_offs import OneOffs, Progress
from celery_sqlbeat.api.records import Job, Run
from celery_sqlbeat.api.runs import Dead, Runs
from celery_sqlbeat.api.status import Status, read_status
from celery_sqlbeat.beat_schedule.entries import owner_of
from celery_sqlbeat.celery_bridge.app import rules_of
from celery_sqlbeat.celery_bridge.call_check import check_call
from celery_sqlbeat.config.settings import Settings, read_settings
from celery_sqlbeat.errors import AppIsAlive, LockNotAcquired, NoJobsOf
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.store import Store, open_store

__all__ = ["Handle", "Job", "Run"]


class Handle:
    """The jobs of an app, their history and their dead letters.

    It connects when it is first used, and may be kept as long as the program lives.
    """

    jobs: Jobs
    runs: Runs
    dead: Dead
    locks: Locks

    def __init__(self, app: Any, settings: Settings | None = None, store: Store | None = None) -> None:
        """Use these settings, or read them from the app when they are first needed."""
        self.app = app
        self._settings = settings
        self._store = store
        self._rules: Rules | None = None
        self._is_ready = False
        self.jobs = Jobs(self.ready, lambda: self.rules, self._adopt, partial(check_call, app))
        self.runs = Runs(self.ready, app)
        self.dead = Dead(self.ready)
        self.locks = Locks(self.ready)
        self.one_offs = OneOffs(app, self.ready, lambda: self.settings, lambda: self.rules)

    @property
    def settings(self) -> Settings:
        """Read the app's settings, once."""
        if self._settings is None:
            self._settings = read_settings(self.app.conf, environment.variables())
        return self._settings

    @property
    def store(self) -> Store:
        """Make the store that the settings name; it connects at the first statement."""
        if self._store is None:
            self._store = open_store(self.settings)
        return self._store

    @property
    def rules(self) -> Rules:
        """Return what holds for every job that has no value of its own."""
        if self._rules is None:
            self._rules = rules_of(self.app, self.settings)
        return self._rules

    def ready(self) -> Store:
        """Return the store, whose schema is checked the first time."""
        if not self._is_ready:
            self.store.check_schema()
            self._is_ready = True
        return self.store

    def status(self) -> Status:
        """Summarize the namespace: jobs, beats, workers, the last hour."""
        return read_status(self.ready(), self.settings)

    def explain(self, name: str, slots: int = 10) -> Explanation:
        """Explain the last slots of a job, who holds it, and when it fires next."""
        return explain_job(self.app, self.ready(), self.settings, self.rules, name, slots)

    def submit(
        self,
        task: str | Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        eta: datetime | str | None = None,
        countdown: float | timedelta | None = None,
        idempotency_key: str | None = None,
        ttl: float | timedelta | None = None,
        options: Mapping[str, Any] | None = None,
        connection: Any = None,
        using: str | None = None,
        strict: bool = False,
        **policies: Any,
    ) -> Run:
        """Submit a one-off, now or for later: it is kept until its outcome is recorded.

        With an `idempotency_key` the same call within `ttl` seconds (a day) returns the first run.
        `options` are those of `apply_async`, such as queue and priority. On a `connection` of your
        own, or that of Django's database `using`, it exists if your transaction commits. `strict`
        refuses a task that is not registered here.
        """
        return self.one_offs.submit(
            {
                "task": task,
                "args": args,
                "kwargs": kwargs,
                "eta": eta,
                "countdown": countdown,
                "idempotency_key": idempotency_key,
                "ttl": ttl,
                "options": options,
                "connection": connection,
                "using": using,
                "strict": strict,
                **policies,
            }
        )

    def submit_many(self, items: Iterable[Mapping[str, Any]], progress: Progress = lambda _: None) -> list[Run]:
        """Submit many, each a mapping with the parameters of `submit`, batch by batch.

        An item that cannot work is named by the error; nothing of its batch is written.
        """
        return self.one_offs.submit_many(items, progress)

    def lock(self, key: str, expiry: float | timedelta = 30, wait: float | timedelta = 0) -> Lock:
        """Return a lock over all processes of the namespace, for `with`.

        It is extended while it is held. Where it is not free within `wait` seconds, LockNotAcquired
        names its holder. When its process has died, it is free after `expiry` seconds.
        """
        return self.locks.lock(key, expiry, wait)

    def try_lock(self, key: str, expiry: float | timedelta = 30, wait: float | timedelta = 0) -> Lock | None:
        """Take a lock and return it; None where somebody else holds it."""
        try:
            return self.lock(key, expiry, wait).acquire()
        except LockNotAcquired:
            return None

    def leader(
        self,
        name: str,
        expiry: float | timedelta = 30,
        on_won: Callable[[], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> Leader:
        """Return a candidate of this name, of which at most one process leads at a time."""
        return Leader(self.locks, name, expiry, on_won, on_lost)

    def _adopt(self, owner: str) -> list[str]:
        return adopt_jobs(self.app, self.ready(), self.settings, owner)

    def close(self) -> None:
        """Close the connections; the next statement opens new ones."""
        self.one_offs.close()
        store, self._store, self._is_ready = self._store, None, False
        if store is not None:
            store.close()


def adopt_jobs(app: Any, store: Store, settings: Settings, owner: str) -> list[str]:
    """Adopt all jobs of an app; its beats must have stopped, or they would take them back."""
    own = owner_of(app)
    if owner == own:
        return []
    for release in store.living(settings.beat_alive):
        if release.owner == owner:
            raise AppIsAlive(owner, release.beat)
    adopted = store.adopt(own, owner)
    if not adopted:
        raise NoJobsOf(owner, settings.namespace, store.counts().owners)
    return adopted
