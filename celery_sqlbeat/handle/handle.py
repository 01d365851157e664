"""The handle of an app: opens nothing until it is first asked for something."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from celery_sqlbeat.beat.foreseeing import examine
from celery_sqlbeat.beat.rules import rules_of
from celery_sqlbeat.config import Settings, read_settings
from celery_sqlbeat.definition import Rules
from celery_sqlbeat.handle.adopting import adopt_jobs
from celery_sqlbeat.handle.dead import Dead
from celery_sqlbeat.handle.explaining import Explanation
from celery_sqlbeat.handle.inquiry import explain_job
from celery_sqlbeat.handle.jobs import Jobs
from celery_sqlbeat.handle.runs import Runs
from celery_sqlbeat.handle.status import Status, read_status
from celery_sqlbeat.store import Store, open_store


class Handle:
    """What a program may do with the jobs of an app. May be kept for as long as the program lives."""

    jobs: Jobs
    runs: Runs
    dead: Dead

    def __init__(self, app: Any, settings: Settings | None = None, store: Store | None = None) -> None:
        """Without settings they are read from the app when they are first needed."""
        self.app = app
        self._settings = settings
        self._store = store
        self._rules: Rules | None = None
        self._is_ready = False
        self.jobs = Jobs(self.ready, lambda: self.rules, self._adopt, partial(examine, app))
        self.runs = Runs(self.ready)
        self.dead = Dead(self.ready)

    @property
    def settings(self) -> Settings:
        """The app's settings."""
        if self._settings is None:
            self._settings = read_settings(self.app.conf, os.environ)
        return self._settings

    @property
    def store(self) -> Store:
        """The store that the settings name; it has no connection before the first statement."""
        if self._store is None:
            self._store = open_store(self.settings)
        return self._store

    @property
    def rules(self) -> Rules:
        """What holds for every job that does not say otherwise."""
        if self._rules is None:
            self._rules = rules_of(self.app, self.settings)
        return self._rules

    def ready(self) -> Store:
        """The store, once its tables are known to be there; asked the first time only."""
        if not self._is_ready:
            self.store.check_schema()
            self._is_ready = True
        return self.store

    def status(self) -> Status:
        """How things stand: jobs, beats, workers, the last hour."""
        return read_status(self.ready(), self.settings)

    def explain(self, name: str, slots: int = 10) -> Explanation:
        """Tell why a job ran or did not run at each of its last slots, who holds it, and when it fires next."""
        return explain_job(self.app, self.ready(), self.settings, self.rules, name, slots)

    def _adopt(self, owner: str) -> list[str]:
        return adopt_jobs(self.app, self.ready(), self.settings, owner)

    def close(self) -> None:
        """Close the connections; the next question opens new ones."""
        store, self._store, self._is_ready = self._store, None, False
        if store is not None:
            store.close()
