"""Real `celery beat` processes for tests.

A shop, its rows and messages, and processes that are always ended.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.events import KINDS
from celery_sqlbeat.model import AddJob, JobDraft, RunRecord
from celery_sqlbeat.model.lifecycle import CLAIMED, DISPATCHED, SCHEDULED, SKIPPED
from celery_sqlbeat.store import open_store
from celery_sqlbeat.store.records import RunQuery
from tests.support.brokers import Place
from tests.support.views import AdminView, NodeView, sql_store

T = TypeVar("T")

LONG = bool(os.environ.get("SQLBEAT_TEST_LONG"))  # 200 jobs for a minute on every combination, instead of seconds
PATIENCE = 30.0  # seconds; far more than anything here takes on a machine that is not busy
_ROOT = Path(__file__).resolve().parents[2]
_PAGE = 1000

_SHOP = """\
import json, os, time
from celery import Celery
from kombu import Exchange, Queue

app = Celery("shop", broker={broker!r})
app.conf.update(json.loads({conf!r}))
app.conf.task_queues = [
    Queue(each["name"], Exchange(each["exchange"], each["type"]), routing_key=each["key"])
    for each in json.loads({queues!r})
]


@app.task(name="shop.add")
def add(*args):
    return sum(args)


{extra}
"""


class Beat:
    """One process and its log."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process, self._log = process, log

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self._log.read_text(errors="replace")

    def says(self, text: str, times: int = 1, after: int = 0, seconds: float = PATIENCE) -> None:
        """Wait until its log has this text."""
        wait_for(lambda: self.log[after:].count(text) >= times, seconds, lambda: f"{text!r} is missing in:\n{self.log}")

    def events(self, kind: str) -> list[str]:
        """Return the lines of its log that tell of events of this kind, which must exist.

        Or `not events` could not fail.
        """
        return [line for line in self.log.splitlines() if KINDS[kind].sentence in line]

    def signal(self, number: int) -> None:
        """Send a signal to it, and to what it has started."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """End it as an out-of-memory killer does."""
        self.signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def stop(self, seconds: float = PATIENCE) -> float:
        """End it in order; returns how long that took."""
        began = time.monotonic()
        self.process.terminate()
        assert self.wait(seconds) == 0, self.log
        return time.monotonic() - began

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait for its end; returns the exit code.

        One that does not end is made to say where it stands.
        """
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            signals = self._signals()
            self.process.send_signal(signal.SIGABRT)  # Python then writes down where each of its threads is
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE)
            raise AssertionError(f"it does not end within {seconds:g} s:\n{signals}\n{self.log}") from None

    def _signals(self) -> str:
        """Return what Linux knows of its state, and of the signals that it blocks and ignores."""
        status = Path(f"/proc/{self.process.pid}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        return "\n".join(line for line in lines if line.startswith(("State", "Sig", "ShdPnd")))


class Shop:
    """An app in a folder of its own, on one database and one broker."""

    def __init__(self, folder: Path, database_url: str, place: Place) -> None:
        self.folder, self.place = folder, place
        # Python takes a module that was rewritten within a second, to the same size, for unchanged.
        # Where this is a file it compiles the module anew.
        (folder / "__pycache__").touch()
        self.beats: list[Beat] = []
        self.launcher: list[str] = []
        """What starts each process, where something has to be set up for it before."""
        self.database_url = database_url
        self.store = open_store(read_settings({"sqlbeat_database_url": database_url}, {}))
        self.conf: dict[str, Any] = {
            "sqlbeat_poll_interval": 2,
            "sqlbeat_notice_interval": 0.5,
            "sqlbeat_policies": {"*": {"cadence": "fixed_rate"}},
            "task_ignore_result": True,
        }

    def write(
        self, entries: Mapping[str, Any] | None = None, broker_url: str | None = None, extra: str = "", **conf: Any
    ) -> None:
        """Write the shop's module; `conf` is added to what all shops have."""
        app = self.place.app()
        given = {
            "sqlbeat_database_url": self.database_url,
            **self.conf,
            **conf,
            "beat_schedule": dict(entries or {}),
            "task_default_queue": app.conf.task_default_queue,
            "broker_transport_options": {
                **app.conf.broker_transport_options,
                **conf.get("broker_transport_options", {}),
            },
        }
        queues = [
            {
                "name": queue.name,
                "exchange": queue.exchange.name,
                "type": queue.exchange.type,
                "key": queue.routing_key,
            }
            for queue in self.place.queues.values()
        ]
        (self.folder / "shop.py").write_text(
            _SHOP.format(
                broker=broker_url or self.place.url, conf=json.dumps(given), queues=json.dumps(queues), extra=extra
            )
        )

    def start(self, command: str = "beat", *options: str, app: str = "shop", **environ: str) -> Beat:
        """Start a beat, or another command that runs one."""
        log = self.folder / f"{command}-{len(self.beats)}.log"
        arguments = [
            "--scheduler",
            "celery_sqlbeat.Scheduler",
            *(["--pidfile="] if command == "beat" else []),
            *options,
        ]
        beat = Beat(self.spawn(log, command, *arguments, app=app, **environ), log)
        self.beats.append(beat)
        return beat

    def spawn(
        self, log: Path, command: str, *options: str, app: str = "shop", **environ: str
    ) -> "subprocess.Popen[bytes]":
        """Start a command of Celery in a session of its own."""
        return self.run(log, "-m", "celery", "-A", app, command, "-l", "info", *options, **environ)

    def run(self, log: Path, *arguments: str, **environ: str) -> "subprocess.Popen[bytes]":
        """Start Python in a session of its own."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SQLBEAT_")}
        with log.open("wb") as output:
            return subprocess.Popen(
                [
                    *self.launcher,
                    sys.executable,
                    "-W",
                    "ignore",
                    *arguments,
                ],
                cwd=self.folder,
                env={
                    **inherited,
                    "PYTHONPATH": f"{_ROOT}{os.pathsep}{self.folder}",
                    "PYTHONFAULTHANDLER": "1",
                    **environ,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def runs(self) -> list[RunRecord]:
        """Return the whole history."""
        admin, found = AdminView(self.store), list[RunRecord]()
        page = admin.runs(RunQuery(page_size=_PAGE))
        while page:
            found += page
            page = admin.runs(RunQuery(after=page[-1], page_size=_PAGE)) if len(page) == _PAGE else []
        return found

    def dispatched(self) -> list[RunRecord]:
        """Return what was fired and forgotten."""
        return [run for run in self.runs() if run.state == DISPATCHED]

    def wait_for_slots(self, jobs: int, each: int, seconds: float = PATIENCE) -> None:
        """Wait until that many jobs have that many slots behind them."""

        def enough() -> bool:
            slots = Counter(run.job_name for run in self.runs() if run.state in (DISPATCHED, SKIPPED))
            return sum(count >= each for count in slots.values()) >= jobs

        wait_for(enough, seconds, self.logs)

    def wait_for_more(self, slots: int = 1, seconds: float = PATIENCE) -> None:
        """Wait until so many more slots are dispatched than now."""
        before = len(self.dispatched())
        wait_for(lambda: len(self.dispatched()) >= before + slots, seconds, self.logs)

    def wait_until_settled(self, seconds: float = PATIENCE) -> None:
        """Wait until nothing that is claimed or given back now is so any more."""
        left = {run.run_id for run in self.runs() if run.state in (CLAIMED, SCHEDULED)}
        wait_for(
            lambda: not left & {run.run_id for run in self.runs() if run.state in (CLAIMED, SCHEDULED)},
            seconds,
            self.logs,
        )

    def logs(self) -> str:
        """Return the end of each log, for a test that failed."""
        return "\n".join(f"--- {beat._log.name}\n{beat.log[-3000:]}" for beat in self.beats)

    def statement(self, text: str) -> None:
        """Change something by hand, as a DBA would."""
        session = sql_store(self.store).database.dialect.connect()
        try:
            session.begin()
            session.script(text)
            session.commit()
        finally:
            session.close()

    def add(self, *names: str, schedule: str = "every 1s", at: datetime | None = None, **fields: Any) -> None:
        """Add jobs as this package does."""
        draft = JobDraft("", "shop.add", schedule, None, "[1]", None, None, None, True, None, at, None)
        writes = [AddJob(draft._replace(job_name=name, **fields)) for name in names]
        assert AdminView(self.store).write_jobs(writes).done == set(names)

    def now(self) -> datetime:
        """Return the server's clock."""
        return NodeView(self.store).clock()

    def close(self) -> None:
        """End what is left."""
        for beat in self.beats:
            if beat.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    beat.kill()
        self.store.close()


@contextlib.contextmanager
def shop(folder: Path, database_url: str, place: Place) -> Iterator[Shop]:
    """Yield a shop whose tables are there, and whose processes are gone afterwards."""
    made = Shop(folder, database_url, place)
    try:
        made.store.migrate()
        yield made
    finally:
        made.close()


def wait_for(condition: Callable[[], Any], seconds: float, why: Callable[[], str] = str) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s\n{why()}"
        time.sleep(0.05)


def assert_sent_once(shop: Shop, copies_of_a_run: int = 1) -> None:
    """Each slot that was dispatched has its message.

    No claim has two, and no run more than so many.
    """
    messages = shop.place.take()
    headers = [message.headers["sqlbeat"] for message in messages]
    for message in messages:
        assert message.headers["id"] == message.headers["sqlbeat"]["run"]
    doubled = [claim for claim, count in Counter((each["run"], each["fence"]) for each in headers).items() if count > 1]
    assert not doubled, shop.logs()
    copies = Counter(each["run"] for each in headers)
    assert {run.run_id for run in shop.dispatched()} - copies.keys() == set(), shop.logs()
    assert max(copies.values(), default=0) <= copies_of_a_run, shop.logs()


def assert_no_slot_is_missing(shop: Shop, intervals: Mapping[str, float]) -> None:
    """From a job's first slot to its last there is one outcome for each point of its grid."""
    by_job: dict[str, list[RunRecord]] = {name: [] for name in intervals}
    for run in shop.runs():
        by_job[run.job_name].append(run)
    for name, runs in by_job.items():
        interval = timedelta(seconds=intervals[name])
        slots = [run.scheduled_for + at * interval for run in runs for at in range(run.slot_count)]
        assert slots, name
        first = min(slots)
        assert sorted(slots) == [first + at * interval for at in range(len(slots))], name
        assert {run.attempt for run in runs if run.state == DISPATCHED} <= {1}, name


def assert_clean(*beats: Beat) -> None:
    """No beat had an error that it did not expect."""
    for beat in beats:
        assert "Traceback" not in beat.log, beat.log
