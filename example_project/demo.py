"""The demonstration: three beats and two workers on one machine, two of them killed, and an audit.

`celery sqlbeat demo` runs it. It needs no server: SQLite, and a folder of messages. With an address
it runs on that database, in a namespace of its own, which it empties.
"""

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from celery_sqlbeat.api.audit import Audit, audit
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import SqlbeatError, TransientError
from celery_sqlbeat.model import AddJob, DeleteJob, JobDraft, JobRecord, PauseJob, RunRecord
from celery_sqlbeat.schedule import next_after, parse, zone_named
from celery_sqlbeat.store import open_store
from celery_sqlbeat.store.purges import DeadLetters, OldNodes, OldRuns, WholeNamespace
from celery_sqlbeat.store.records import JobQuery, RunQuery

ROOT = Path(__file__).resolve().parents[1]  # the folder that has this project
BEATS, WORKERS = ("beat 1", "beat 2", "beat 3"), ("worker 1", "worker 2")
LONG_JOB, CRONTAB_JOB = "build-report", "every-minute"
LEASE_SECONDS = 6.0  # below the 9 s of the long task, so that only heartbeats keep it alive
LONGEST_SECONDS = 63.0  # a crontab's next minute may be a whole one away
SETTINGS = {
    "SQLBEAT_LOCK_TIMEOUT": f"{LEASE_SECONDS:g}",
    "SQLBEAT_HEARTBEAT_INTERVAL": "1.5",
    "SQLBEAT_HEARTBEAT_FAILURES": "2",
    "SQLBEAT_DISPATCH_TIMEOUT": "3",
    "SQLBEAT_POLL_INTERVAL": "5",
    "SQLBEAT_NOTICE_INTERVAL": "1",
}
ALL = 1000  # jobs or runs; a minute makes about a hundred


def surroundings(inherited: Mapping[str, str], place: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of the processes: short leases, and no settings of another app.

    `place` names the database and the namespace, where they are not those of the project.
    """
    others = ("SQLBEAT_", "CELERY_", "EXAMPLE_")
    environ = {name: value for name, value in inherited.items() if not name.startswith(others)}
    path = [str(ROOT), *filter(None, [environ.get("PYTHONPATH")])]
    return {**environ, **SETTINGS, **(place or {}), "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


class Process:
    """A beat or a worker, with its log."""

    def __init__(self, name: str, folder: Path, place: Mapping[str, str], *command: str) -> None:
        self.name, self.killed, self.log = name, False, folder / f"{name.replace(' ', '-')}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own Python, no shell
                [sys.executable, "-m", "celery", "-A", "example_project", *command, "--loglevel", "INFO"],
                cwd=folder,
                env=surroundings(os.environ, place),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that Ctrl-C reaches this program alone, which then ends them
            )

    def sweep(self, patience: float = 0.0) -> None:
        """End whatever is left of it, children included."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Scene(NamedTuple):
    """What the database shows at one moment."""

    now: datetime
    jobs: list[JobRecord]
    runs: list[RunRecord]
    names: Mapping[str, str]  # what the demonstration calls each node that it started, by its id

    def called(self, node_id: str | None) -> str:
        """Return the name of a node."""
        return self.names.get(node_id or "", node_id or "")

    @property
    def done(self) -> set[str]:
        """The ids of the runs that ended well."""
        return {run.run_id for run in self.runs if run.state in ("success", "dispatched")}

    def latest_claim(self, by: set[str], since: Any = None) -> tuple["Scene", Any] | None:
        """Return the latest claim, if one of these beats made it, and not before an instant."""
        claimed = [run for run in self.runs if run.claimed_at is not None]
        run: Any = max(claimed, key=lambda run: (run.claimed_at, run.run_id), default=None)
        is_it = run is not None and self.called(run.claimed_by) in by and (since is None or run.claimed_at > since)
        return (self, run) if is_it else None

    def outlived(self, job_name: str) -> tuple["Scene", RunRecord, float, float] | None:
        """Return a run that has outlasted a lease, its age, and how much of its lease is left."""
        for job in self.jobs:
            for run in self.runs:
                if job.job_name == job_name and run.run_id == job.run_id and run.started_at and job.lease_ends_at:
                    ran = (self.now - run.started_at).total_seconds()
                    left = (job.lease_ends_at - self.now).total_seconds()
                    if run.state == "running" and ran > LEASE_SECONDS and left > 0:
                        return self, run, ran, left
        return None

    def next_attempt(self, lost: RunRecord) -> tuple["Scene", Any] | None:
        """Return the attempt of the same slot that has started since."""
        slot = (lost.job_id, lost.kind, lost.scheduled_for)
        later = [run for run in self.runs if (run.job_id, run.kind, run.scheduled_for) == slot]
        return next(((self, run) for run in later if run.attempt > lost.attempt and run.started_at), None)


class Demo:
    """One demonstration."""

    def __init__(self, folder: Path, live: Live | None, write: Callable[[str], None], place: Mapping[str, str]) -> None:
        self.folder, self.live, self.write, self.began = folder, live, write, time.monotonic()
        self.processes: list[Process] = []
        self.asides: dict[str, Callable[[Scene], str | None]] = {"a dead letter": dead_letter, "the crontab": crontab}
        self.place = place
        own = {"sqlbeat_database_url": f"sqlite:///{quote(str(folder / 'sqlbeat.db'))}"}
        self.store = open_store(read_settings(own, {**SETTINGS, **place}))

    def run(self, keep: bool) -> Audit:
        """Run it from the first process to the audit, and empty its namespace."""
        try:
            try:
                self.set_the_stage()
                self.tell()
            except TimeoutError as missed:
                self.say(f"not seen in time on this machine: {missed}")
            self.say("the beats and workers that are left are asked to end")
            for kind, patience in (("beat", 3.0), ("worker", 5.0)):
                left = [each for each in self.processes if each.name.startswith(kind) and not each.killed]
                for each in left:
                    each.process.terminate()
                for each in left:
                    each.sweep(patience)
            return self.audit()
        finally:
            for each in self.processes:
                each.sweep()
            if self.place and not keep:
                self.empty_namespace()
            self.store.close()

    def set_the_stage(self) -> None:
        """Create the tables; start workers before beats, so that no slot is fired and forgotten."""
        self.store.migrate()
        # A crontab of this database alone, as a DBA may add one, and there before anybody starts.
        task, schedule = "example_project.tasks.close_books", "cron * * * * *"
        first = next_after(parse(schedule), self.store.pulse().now, zone_named("UTC"))
        job = JobDraft(CRONTAB_JOB, task, schedule, "UTC", None, None, None, None, True, None, first, None)
        self.store.write_jobs([AddJob(job)])
        for name in WORKERS:
            worker = ("worker", "--hostname", f"{name[-1]}@demo", "--concurrency", "2", "--without-mingle")
            self.processes.append(Process(name, self.folder, self.place, *worker, "--without-gossip"))
        self.say(f"{len(WORKERS)} prefork workers start, and {len(BEATS)} beats")
        self.wait("workers that register", lambda scene: {*WORKERS} <= {*scene.names.values()})
        for name in BEATS:
            beat = ("beat", "--scheduler", "celery_sqlbeat.Scheduler", "--pidfile=")
            self.processes.append(Process(name, self.folder, self.place, *beat))

    def empty_namespace(self) -> None:
        """Delete jobs, history, nodes and the rest: others use this database, too."""
        self.store.write_jobs([DeleteJob(name, force=True) for name in self.store.jobs(JobQuery(page_size=ALL))])
        letters = self.store.runs(RunQuery(page_size=ALL, only_dead=True))
        for what in (DeadLetters([letter.run_id for letter in letters]), OldRuns(0.0, limit=ALL), OldNodes(0.0)):
            self.store.purge(what)
        self.store.purge(WholeNamespace())

    def tell(self) -> None:
        """Play the scenes, each as soon as its condition holds, since machines differ in speed."""
        work, five = "beats and workers at work", {*BEATS, *WORKERS}
        scene = self.wait(work, lambda scene: five <= {*scene.names.values()} and scene.done and scene)
        self.say(f"{len(BEATS)} beats and {len(WORKERS)} workers are at work on {len(scene.jobs)} jobs")
        self.wait("two seconds of it", lambda later: (later.now - scene.now).total_seconds() >= 2)
        scene, claim = self.wait("a claim", lambda scene: scene.latest_claim(set(BEATS)))
        killed = scene.called(claim.claimed_by)
        self.kill(killed, f"kill -9 {killed}, which has just claimed {claim.job_name}")
        at, others = scene.now, {*BEATS} - {killed}
        scene, claim = self.wait("another beat carrying on", lambda scene: scene.latest_claim(others, since=at))
        seconds = (claim.claimed_at - at).total_seconds()
        carries_on = f"{scene.called(claim.claimed_by)} carries on: it claimed {claim.job_name}"
        self.say(f"{carries_on} {seconds:.1f} s after the kill")
        scene, lost, ran, left = self.wait("a run that outlives its lease", lambda scene: scene.outlived(LONG_JOB))
        worker, longer = scene.called(lost.started_by), f"longer than its lease of {LEASE_SECONDS:g} s"
        self.say(f"{LONG_JOB} has run for {ran:.1f} s on {worker}, {longer}: heartbeats extend it")
        self.kill(worker, f"kill -9 {worker} in the middle of {LONG_JOB}; its lease has {left:.1f} s left")
        at = scene.now
        scene, again = self.wait("the take-over of its run", lambda scene: scene.next_attempt(lost))
        over = f"{scene.called(again.started_by)} takes {LONG_JOB} over from {worker}, attempt {again.attempt}"
        seconds = (again.started_at - at).total_seconds()
        self.say(f"{over}, {seconds:.1f} s after the kill: the lease had to end first")
        self.wait("the end of that run", lambda scene: again.run_id in scene.done)
        self.store.write_jobs([PauseJob(LONG_JOB, "the demonstration has seen enough of it")])
        self.say(f"{LONG_JOB} is complete; it is paused, as it has been seen enough")
        self.wait(" and ".join(self.asides), lambda _: not self.asides)

    def wait(self, what: str, seen: Callable[[Scene], Any]) -> Any:
        """Poll until a scene can be shown."""
        while time.monotonic() < self.began + LONGEST_SECONDS:
            for each in self.processes:
                if not each.killed and each.process.poll() is not None:
                    last = "\n".join(each.log.read_text(errors="replace").splitlines()[-5:])
                    raise SqlbeatError(f"{each.name} ended by itself: {last}")
            with contextlib.suppress(TransientError):  # SQLite is busy: poll again
                scene = self.read_scene()
                if found := seen(scene):
                    return found
            time.sleep(0.25)
        raise TimeoutError(what)

    def read_scene(self) -> Scene:
        """Read how things stand, show it, and say what happens beside the story."""
        store = self.store
        names = {each.process.pid: each.name for each in self.processes}
        known = {node.node_id: names[node.pid] for node in store.nodes(3600.0) if node.pid in names}
        jobs = store.jobs(JobQuery(page_size=ALL))
        scene = Scene(store.pulse().now, list(jobs.values()), store.runs(RunQuery(page_size=ALL)), known)
        for name, aside in list(self.asides.items()):
            if text := aside(scene):
                del self.asides[name]
                self.say(text)
        if self.live is not None:
            processes = ", ".join(f"{each.name} {'killed' if each.killed else 'alive'}" for each in self.processes)
            self.live.update(Group(table(scene), processes), refresh=True)
        return scene

    def kill(self, name: str, text: str) -> None:
        """Kill the main process, as an out-of-memory killer does; its children must notice it."""
        victim = next(each for each in self.processes if each.name == name)
        victim.killed = True
        victim.process.kill()
        victim.process.wait()
        self.say(text)

    def say(self, text: str) -> None:
        """Say what happened."""
        self.write(f"{time.monotonic() - self.began:5.1f} s  {text}")

    def audit(self) -> Audit:
        """Work out from the history what became of each slot."""
        admin = self.store
        jobs, runs = admin.jobs(JobQuery(page_size=ALL)), admin.runs(RunQuery(page_size=ALL))
        logs = [each.log.read_text(errors="replace") for each in self.processes]
        begun = [run_id for log in logs for run_id in re.findall(r"\[([0-9a-f-]{36})\]: begun on ", log)]
        return audit(runs, jobs, {name: partial(next_slot, job) for name, job in jobs.items()}, begun)


def dead_letter(scene: Scene) -> str | None:
    """Tell of the first dead letter."""
    dead = next((run for run in scene.runs if run.state == "dlq"), None)
    why = ((dead and dead.error) or "no error").splitlines()[-1][:80]
    return f"{dead.job_name} failed {dead.failures} times and is a dead letter: {why}" if dead else None


def crontab(scene: Scene) -> str | None:
    """Tell of the crontab's first run."""
    done = next((run for run in scene.runs if run.job_name == CRONTAB_JOB and run.state == "success"), None)
    return f"{CRONTAB_JOB} ran for its slot {done.scheduled_for:%H:%M:%S} UTC: the crontab fires" if done else None


def next_slot(job: JobRecord, slot: datetime) -> datetime | None:
    """Return what follows a slot of a job. All jobs here keep to a grid."""
    return next_after(parse(job.schedule), slot, zone_named(job.time_zone or "UTC"))


def table(scene: Scene) -> Table:
    """Return how the jobs stand, in widths that no content changes."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column, width in (("job", 12), ("schedule", 15), ("now", 18), ("held by", 8), ("next", 6), ("done", 4)):
        made.add_column(column, no_wrap=True, min_width=width)
    for job in scene.jobs:
        run = next((run for run in scene.runs if run.run_id == job.run_id), None) if job.locked_by else None
        doing = f"{run.state}, attempt {run.attempt}" if run else "waits" if job.enabled else "paused"
        due = job.retry_at or job.next_run_time
        until = f"{max((due - scene.now).total_seconds(), 0):.0f} s" if due and job.enabled else ""
        done = sum(run.job_id == job.job_id and run.run_id in scene.done for run in scene.runs)
        made.add_row(job.job_name, str(job.schedule), doing, scene.called(job.locked_by), until, str(done))
    return made


def run_demo(keep: bool = False, database: str | None = None) -> bool:
    """Run the demonstration, print the audit, and return whether no slot was lost or ran twice."""
    namespace = f"demo-{secrets.token_hex(4)}"
    own = {} if database is None else {"SQLBEAT_DATABASE_URL": database, "SQLBEAT_NAMESPACE": namespace}
    for number in (signal.SIGTERM, signal.SIGHUP):  # they end it as Ctrl-C does: with nothing left behind
        signal.signal(number, signal.default_int_handler)
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    with contextlib.ExitStack() as stack:
        place = tempfile.mkdtemp("", "sqlbeat-demo-") if keep else ""
        place = place or stack.enter_context(tempfile.TemporaryDirectory("", "sqlbeat-demo-"))
        live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        with live or contextlib.nullcontext():
            found = Demo(Path(place), live, console.print, own).run(keep)
        for finding in found.findings:
            console.print(f"- {finding}")
        if keep:
            console.print(f"database, messages and logs: {place}")
            if own:
                console.print(f"jobs and history: namespace {namespace} of the database that you named")
        console.print(str(found))
    return found.is_clean
