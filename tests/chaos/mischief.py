"""What a storm does beside the killing of processes.

Jobs deleted and defined again, children stopped for good.
"""

import contextlib
import json
import math
import os
import random
import signal
import sqlite3
import time
from datetime import datetime, timezone
from pathlib import Path

import psutil
import psycopg
import pymysql

from celery_sqlbeat.errors import SqlbeatError
from celery_sqlbeat.model import AddJob, DeleteJob, JobDraft
from celery_sqlbeat.store.records import JobQuery
from tests.chaos import witnesses
from tests.chaos.guests import Later
from tests.chaos.history import Hang
from tests.chaos.witnesses import Body
from tests.support.beats import Shop
from tests.support.views import AdminView

_TAIL = 200_000  # bytes of the witness; a body that lives has a line among them
_AGAIN = 0.5  # seconds until the next try to define a job whose run has not ended yet


class Rebirths:
    """Jobs that are deleted while they run, and defined again."""

    def __init__(self, shop: Shop, jobs: dict[str, str], every: int, seconds: float) -> None:
        """`jobs` says who deletes each of them: "by the package" or "by hand"."""
        self._shop, self.jobs = shop, jobs
        self._every, self._seconds = every, seconds
        self.count = 0

    def define(self, name: str) -> bool:
        """Define it anew; its slots lie on the same grid in each of its lives.

        False: there still is one.
        """
        ahead = (math.floor(self._shop.now().timestamp() / self._every) + 2) * self._every
        first = datetime.fromtimestamp(ahead, timezone.utc)
        draft = JobDraft(
            name,
            "chaos.works",
            f"every {self._every}s",
            None,
            f"[{self._seconds}]",
            *(None,) * 3,
            True,
            None,
            first,
            None,
        )
        return AdminView(self._shop.store).write_jobs([AddJob(draft)]).done == {name}

    def define_all(self) -> None:
        """For the first time."""
        for name in self.jobs:
            assert self.define(name)

    def delete_one(self, random: random.Random, later: Later) -> bool:
        """Delete a job in any state, and define it again as soon as it is gone."""
        name, force = random.choice(sorted(self.jobs)), random.random() < 0.5
        try:
            if self.jobs[name] == "by hand":
                self._shop.statement(f"DELETE FROM Jobs WHERE JobName = '{name}'")
            else:
                AdminView(self._shop.store).write_jobs([DeleteJob(name, force=force)])
        except (SqlbeatError, psycopg.Error, pymysql.Error, sqlite3.Error):
            return False  # the database is away, or its disk is full

        def again() -> None:
            with contextlib.suppress(SqlbeatError):
                if self.define(name):
                    self.count += 1
                    return
                if self._is_there(name):
                    return
            later(_AGAIN, again)

        later(random.uniform(0, 2), again)
        return True

    def _is_there(self, name: str) -> bool:
        """Whether nobody wants it deleted any more.

        An earlier deletion has led to its definition already.
        """
        rows = {row.job_name: row for row in AdminView(self._shop.store).jobs(JobQuery(page_size=1000)).values()}
        return name in rows and not rows[name].delete_requested


class Hangs:
    """Children of prefork that are stopped inside a body whose time is bounded."""

    def __init__(self, witness: Path, prefix: str) -> None:
        self._witness, self._prefix = witness, prefix
        self.found: list[Hang] = []

    def stop_one(self, is_timed: bool = False) -> bool:
        """Stop a child for good; False where none runs such a body now."""
        for body in self._alive():
            if not _is_child(body):
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(body.child, signal.SIGSTOP)
                if body.run in {each.run for each in self._alive()}:
                    self.found.append(Hang(body.run, body.process, time.monotonic(), is_timed))
                    return True
                os.kill(body.child, signal.SIGCONT)  # the body had ended just then
        return False

    def _alive(self) -> list[Body]:
        if not self._witness.exists():
            return []
        with self._witness.open("rb") as file:
            file.seek(max(0, self._witness.stat().st_size - _TAIL))
            text = file.read().decode(errors="replace")
        lines = [line for line in text.splitlines()[1:] if line.endswith("}")]
        begun = {json.loads(line)["body"] for line in lines if '"begins"' in line}
        known = witnesses.read(line for line in lines if json.loads(line)["body"] in begun)
        fresh = time.monotonic() - 3 * witnesses.STEP
        return [
            body
            for body in known
            if body.job.startswith(self._prefix) and body.ended is None and body.last_seen > fresh
        ]


def _is_child(body: Body) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return body.child != body.process and psutil.Process(body.child).ppid() == body.process
    return False
