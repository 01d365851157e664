"""Runs the demonstration: sets the stage, lets the story happen, ends everybody, and audits what is left."""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from urllib.parse import quote

from celery_sqlbeat.audit import Audit, Grid, audit
from celery_sqlbeat.config import read_settings
from celery_sqlbeat.demo.cast import Cast
from celery_sqlbeat.demo.project import APP, LEASE_SECONDS, settings, surroundings
from celery_sqlbeat.demo.scene import Scene, scene
from celery_sqlbeat.demo.screen import Screen
from celery_sqlbeat.demo.story import BEATS, CRONTAB_JOB, WORKERS, Step, Story
from celery_sqlbeat.errors import SqlbeatError, TransientError
from celery_sqlbeat.model import JobDraft, JobRecord, RunRecord
from celery_sqlbeat.schedule import next_after, parse, zone_named
from celery_sqlbeat.store import Store, open_store

_LONGEST_SECONDS = 63.0  # a crontab's next minute may be a whole one away; then everybody still has to end
_START_SECONDS = 20.0  # for the workers to register, before beats start anyway
_LOOK_SECONDS = 0.25
_BEATS_END_SECONDS = 3.0
_WORKERS_END_SECONDS = 5.0
_PAGE = 1000  # jobs or runs; a minute makes about a hundred


class Show:
    """One demonstration."""

    def __init__(self, folder: Path, screen: Screen, began: float) -> None:
        self._screen, self._began = screen, began
        self._cast = Cast(folder, APP, surroundings(os.environ))
        url = f"sqlite:///{quote(str(folder / 'sqlbeat.db'))}"
        self._store: Store = open_store(read_settings({**settings(), "sqlbeat_database_url": url}, {}))
        self._story = Story(LEASE_SECONDS)

    def run(self) -> Audit:
        """Run it from the first process to the audit."""
        try:
            self._set_the_stage()
            while self._story.missing and self._elapsed() < _LONGEST_SECONDS:
                self._look()
                time.sleep(_LOOK_SECONDS)
            if self._story.missing:
                self._say(f"not seen in time on this machine: {', '.join(self._story.missing)}")
            self._show(self._scene())
            self._say("the beats and workers that are left are asked to end")
            self._cast.stop("beat", _BEATS_END_SECONDS)
            self._cast.stop("worker", _WORKERS_END_SECONDS)
            return self._audit()
        finally:
            self._cast.close()
            self._store.close()

    def _set_the_stage(self) -> None:
        self._store.migrate()
        # A crontab of this database alone, as a DBA may add one, and there before anybody starts: so the demonstration
        # is over when the next minute has begun, and not the one after it.
        self._store.for_admin().add_jobs([_crontab_job(self._store)])
        for name in WORKERS:
            self._cast.start_worker(name)
        self._say(f"{len(WORKERS)} prefork workers start, and {len(BEATS)} beats")
        registered: set[str] = set()
        while registered < set(WORKERS) and self._elapsed() < _START_SECONDS:
            self._nobody_fell()
            time.sleep(_LOOK_SECONDS)
            seen = self._scene()
            registered = {node.name for node in seen.nodes}
            self._show(seen)
        for name in BEATS:
            self._cast.start_beat(name)

    def _look(self) -> None:
        self._nobody_fell()
        try:
            seen = self._scene()
        except TransientError:  # SQLite is busy: the next look will do
            return
        self._show(seen)
        for step in self._story.tell(seen, self._elapsed()):
            self._do(step)

    def _do(self, step: Step) -> None:
        if step.kill is not None:
            self._cast.named(step.kill).kill()
        self._say(step.text)
        if step.pause is not None:
            self._store.for_admin().pause(step.pause, "the demonstration has seen enough of it")

    def _nobody_fell(self) -> None:
        for actor in self._cast.fallen():
            raise SqlbeatError(f"{actor.name} ended by itself: {actor.last_words()}")

    def _scene(self) -> Scene:
        admin, nodes = self._store.for_admin(), self._store.nodes()
        names = {actor.pid: actor.name for actor in self._cast.actors}
        now = nodes.clock()
        return scene(now, admin.list_jobs(_PAGE), admin.runs(_PAGE), nodes.seen(3600.0), names)

    def _audit(self) -> Audit:
        admin = self._store.for_admin()
        jobs = admin.list_jobs(_PAGE)
        begun = [run_id for actor in self._cast.actors for run_id in actor.begun()]
        return audit(_all_runs(self._store), {job.job_name: job for job in jobs}, _grids(jobs), begun)

    def _show(self, seen: Scene) -> None:
        killed = {actor.name for actor in self._cast.actors if actor.killed}
        self._screen.show(seen, self._elapsed(), killed, self._story.missing)

    def _say(self, text: str) -> None:
        self._screen.say(self._elapsed(), text)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began


def _crontab_job(store: Store) -> JobDraft:
    schedule = "cron * * * * *"
    first = next_after(parse(schedule), store.nodes().clock(), zone_named("UTC"))
    return JobDraft(
        CRONTAB_JOB,
        f"{APP}.tasks.close_books",
        schedule,
        "UTC",
        None,
        None,
        None,
        None,
        True,
        None,
        first,
        None,
    )


def _grids(jobs: list[JobRecord]) -> Mapping[str, Grid]:
    """The grid of each job: all of the example project keep to one, by their policy or as a crontab."""

    def grid(job: JobRecord) -> Grid:
        schedule, zone = parse(job.schedule), zone_named(job.time_zone or "UTC")
        return lambda slot: next_after(schedule, slot, zone)

    return {job.job_name: grid(job) for job in jobs}


def _all_runs(store: Store) -> Iterator[RunRecord]:
    admin = store.for_admin()
    page = admin.runs(_PAGE)
    while page:
        yield from page
        page = admin.runs(_PAGE, page[-1].run_id) if len(page) == _PAGE else []


def run_demo(screen: Callable[[], Screen], write: Callable[[str], None], keep: bool) -> bool:
    """Run the demonstration and say what came of it; returns whether no slot was lost or run twice."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="sqlbeat-demo-")) if keep else None
    with (
        _ended_by_signals(),
        nullcontext(folder) if folder else tempfile.TemporaryDirectory(prefix="sqlbeat-demo-") as place,
    ):
        with screen() as shown:
            found = Show(Path(place), shown, began).run()
        for finding in found.findings:
            write(f"- {finding}")
        if keep:
            write(f"database, messages and logs: {place}")
        write(str(found))
    return found.is_clean


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this program as Ctrl-C does: with nothing left behind."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
