"""The command line as it is typed.

Real processes, a real terminal, real workers that it looks at.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.conftest import MakeShop
from tests.support.beats import Beat, Shop

pytestmark = pytest.mark.slow

PATIENCE = 60.0
EXTRA_TASK = """
if os.environ.get("EXTRA"):
    @app.task(name="extra.task")
    def extra():
        pass
"""
QUICK = ("--timeout", "0.2")  # where nobody is asked who might answer late
ROOT = Path(__file__).resolve().parents[2]
# A worker that nobody told of us: embedded, without the command line whose entry points we come by.
PLAIN_WORKER = """
from shop import app
app.Worker(pool="solo", queues={queues!r}, hostname="plain@host", loglevel="INFO", without_gossip=True).start()
"""


@pytest.fixture
def shop(make_shop: MakeShop) -> Shop:
    made = make_shop("sqlite", "redis")
    made.write()
    return made


def environ(shop: Shop, **more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SQLBEAT_")}
    return {**inherited, "PYTHONPATH": f"{ROOT}{os.pathsep}{shop.folder}", "TERM": "xterm", **more}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "celery", "-A", "shop", "sqlbeat", *arguments]


def run(shop: Shop, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run a command where no terminal is."""
    return subprocess.run(
        command(*arguments),
        cwd=shop.folder,
        env=environ(shop, **more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def on_a_terminal(shop: Shop, *arguments: str, types: str = "", columns: int = 80, **more: str) -> tuple[int, str]:
    """Run a command in a terminal of its own; returns its exit code and what the terminal shows."""
    # Whoever runs the tests may have told programs a width that is not this terminal's.
    sized = {name: value for name, value in environ(shop, **more).items() if name not in ("COLUMNS", "LINES")}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        command(*arguments), cwd=shop.folder, env=sized, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, types.encode())
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while data := os.read(ours, 4096):
            shown += data
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace"))
    return process.wait(PATIENCE), text.replace("\r", "")


def findings(shop: Shop, *arguments: str, **more: str) -> dict[str, Any]:
    """Return what `check` finds, by name; its exit code fits."""
    done = run(shop, "check", "--json", *arguments, **more)
    assert done.stderr == "", done.stderr
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["ok"] else 1)
    return {each["name"]: each for each in found["findings"]}


@contextlib.contextmanager
def worker(shop: Shop, arguments: list[str], **more: str) -> Iterator[Beat]:
    log = shop.folder / f"worker-{time.monotonic_ns()}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", *arguments],
            cwd=shop.folder,
            env=environ(shop, **more),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    started = Beat(process, log)
    try:
        started.says(" ready.", seconds=PATIENCE)
        yield started
    finally:
        started.kill()


def ours(shop: Shop, **more: str) -> contextlib.AbstractContextManager[Beat]:
    queue = shop.place.queue("default")
    options = ["worker", "--pool", "solo", "--queues", queue, "--hostname", "ours@host", "--without-gossip"]
    return worker(shop, ["-m", "celery", "-A", "shop", *options, "--loglevel", "INFO"], **more)


def plain(shop: Shop) -> contextlib.AbstractContextManager[Beat]:
    return worker(shop, ["-c", PLAIN_WORKER.format(queues=[shop.place.queue("default")])])


def put(shop: Shop, name: str = "a", *more: str) -> None:
    done = run(shop, "jobs", "put", name, "--task", "shop.add", "--schedule", "every 1h", *more)
    assert done.returncode == 0, done.stderr


def test_the_first_commands_of_a_new_shop(shop: Shop) -> None:
    fresh = {"SQLBEAT_DATABASE_URL": f"sqlite:///{shop.folder / 'fresh.db'}"}
    missing = run(shop, "jobs", "list", **fresh)
    assert missing.returncode == 1
    assert missing.stderr.count("\n") == 1 and "sqlbeat init" in missing.stderr
    assert run(shop, "init", **fresh).returncode == 0
    added = run(shop, "jobs", "put", "a", "--task", "shop.add", "--schedule", "5", "--args", "[1, 2]", **fresh)
    assert (added.returncode, added.stderr) == (0, "")
    assert run(shop, "jobs", "list", **fresh).stdout.splitlines()[1].startswith("a    every 5s")


def test_an_error_shows_no_secret_and_no_traceback(shop: Shop) -> None:
    where = {"SQLBEAT_DATABASE_URL": "postgresql://user:s3kr1t@127.0.0.1:9/nowhere", "SQLBEAT_DISPATCH_TIMEOUT": "1"}
    for arguments in (["status"], ["jobs", "list"], ["health"], ["explain", "a"], ["init"]):
        done = run(shop, *arguments, **where)
        assert done.returncode == 1
        assert "s3kr1t" not in done.stdout + done.stderr and "Traceback" not in done.stderr
        assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1
    assert run(shop, "health", "--liveness", **where).returncode == 0


@pytest.mark.parametrize("columns", [80, 60])
def test_tables_fit_the_terminal(shop: Shop, columns: int) -> None:
    name = "a job of quite a long name, longer than half of a terminal [bold]"
    schedule = "cron 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20 */2 1-15 * mon-fri"
    assert run(shop, "jobs", "put", name, "--task", "shop.add", "--schedule", schedule).returncode == 0
    assert run(shop, "jobs", "run-now", name).returncode == 0
    for arguments in (["jobs", "list"], ["runs", "list"], ["dead", "list"], ["explain", name]):
        exit_code, shown = on_a_terminal(shop, *arguments, columns=columns, TZ="Asia/Kolkata")
        assert exit_code == 0
        table = [line for line in shown.splitlines() if not line.startswith(("- ", name))]
        assert max(map(len, table)) <= columns, shown
        if arguments != ["dead", "list"]:
            assert "─" in shown
    _, shown = on_a_terminal(shop, "jobs", "list", columns=200, TZ="Asia/Kolkata")
    assert name in shown and "next run (IST)" in shown


def test_the_id_of_a_run_is_not_broken_in_a_terminal(shop: Shop) -> None:
    put(shop)
    run_id = run(shop, "jobs", "run-now", "a", "--json").stdout.split('"id": "')[1][:36]
    assert run_id in on_a_terminal(shop, "runs", "list")[1]


def test_a_reader_that_has_seen_enough_gets_no_error(shop: Shop) -> None:
    put(shop)
    line = " ".join(command("explain", "a")) + " | head -1"
    done = subprocess.run(
        ["sh", "-c", line], cwd=shop.folder, env=environ(shop), capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.startswith("a at ") and done.stderr == ""


def test_where_no_terminal_is_tables_are_plain_lines(shop: Shop) -> None:
    put(shop, "x" * 150)
    (header, line) = run(shop, "jobs", "list").stdout.splitlines()
    assert header.split()[:3] == ["JOB", "SCHEDULE", "STATE"]
    assert line.startswith("x" * 150 + "  every 1h")


def test_times_are_the_users_and_in_utc(shop: Shop) -> None:
    put(shop, "a", "--start", "2030-01-01T00:00:00Z")
    shown = run(shop, "jobs", "show", "a", TZ="Asia/Tokyo").stdout
    assert "2030-01-01 09:00:00 JST (2030-01-01 00:00:00 UTC)" in shown
    assert "2030-01-01 09:00:00" in run(shop, "jobs", "list", TZ="Asia/Tokyo").stdout
    assert "2030-01-01 00:00:00" in run(shop, "jobs", "list", "--utc", TZ="Asia/Tokyo").stdout


def test_whoever_sits_at_a_terminal_is_asked(shop: Shop) -> None:
    put(shop)
    exit_code, shown = on_a_terminal(shop, "jobs", "delete", "a", types="n\n")
    assert exit_code == 1 and "Delete job 'a'?" in shown and "Aborted" in shown
    exit_code, shown = on_a_terminal(shop, "jobs", "delete", "a", types="y\n")
    assert exit_code == 0 and "a is deleted" in shown


def test_a_living_worker_with_the_extension_is_no_finding(shop: Shop) -> None:
    put(shop)
    with ours(shop):
        assert set(findings(shop)) == {"beats"}
        beat = shop.start("beat")
        beat.says("beat: Starting...")
        wait_until(lambda: findings(shop) == {})
        text = run(shop, "check")
        libraries, *rest = text.stdout.splitlines()
        assert (rest, text.returncode) == (["nothing is wrong"], 0)
        assert libraries.startswith("Celery ") and libraries.endswith("0 missing, 0 fast paths off")


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end


def test_workers_without_the_extension_are_named(shop: Shop) -> None:
    put(shop)
    with plain(shop), ours(shop):
        found = findings(shop)
    assert found["extension"]["level"] == "error"
    assert "plain@host" in found["extension"]["says"] and "ours@host" not in found["extension"]["says"]
    assert "store" not in found


def test_workers_on_another_store_or_namespace_are_named(shop: Shop) -> None:
    put(shop)
    other = f"sqlite:///{shop.folder / 'other.db'}"
    assert run(shop, "init", SQLBEAT_DATABASE_URL=other).returncode == 0
    with ours(shop, SQLBEAT_DATABASE_URL=other):
        found = findings(shop)
        assert "ours@host" in found["store"]["says"] and "another database" in found["store"]["says"]
    with ours(shop, SQLBEAT_NAMESPACE="other"):
        assert "ours@host (other)" in findings(shop)["namespace"]["says"]


def test_a_database_or_a_broker_that_is_not_there_is_found_in_a_bounded_time(shop: Shop) -> None:
    began = time.monotonic()
    found = findings(shop, *QUICK, SQLBEAT_DATABASE_URL="postgresql://user:s3kr1t@127.0.0.1:9/nowhere")
    assert found["database"]["level"] == "error" and "s3kr1t" not in str(found)
    shop.write(broker_url="redis://user:s3kr1t@127.0.0.1:9/0")
    found = findings(shop)
    assert found["broker"]["level"] == "error" and "s3kr1t" not in str(found)
    assert time.monotonic() - began < PATIENCE


def test_tables_that_are_missing_or_of_another_version_are_found(shop: Shop) -> None:
    nowhere = findings(shop, *QUICK, SQLBEAT_DATABASE_URL=f"sqlite:///{shop.folder / 'nowhere.db'}")
    assert "sqlbeat init" in nowhere["database"]["remedy"]
    assert not (shop.folder / "nowhere.db").exists()
    (shop.folder / "empty.db").touch()
    empty = findings(shop, *QUICK, SQLBEAT_DATABASE_URL=f"sqlite:///{shop.folder / 'empty.db'}")
    assert "sqlbeat init" in empty["schema"]["remedy"]
    shop.statement("UPDATE SchemaMigrations SET Checksum = 'another'")
    assert findings(shop, *QUICK)["schema"]["level"] == "error"


def test_settings_that_cannot_work_are_a_finding(shop: Shop) -> None:
    found = findings(shop, SQLBEAT_HEARTBEAT_INTERVAL="100")
    assert [*found] == ["settings"]
    assert "sqlbeat_lock_timeout = 120.0: must be more than" in found["settings"]["says"]


def test_a_visibility_timeout_shorter_than_a_lease_is_found(shop: Shop) -> None:
    put(shop, "long", "--lock-timeout", "7200")
    found = findings(shop, *QUICK)["visibility-timeout"]
    assert found["level"] == "error" and "job long" in found["says"]


def test_a_task_that_only_a_worker_has_is_known(shop: Shop) -> None:
    done = run(shop, "jobs", "put", "theirs", "--task", "extra.task", "--schedule", "every 1h")
    assert done.returncode == 0
    assert "extra.task of theirs" in findings(shop, *QUICK)["tasks"]["says"]
    shop.write(extra=EXTRA_TASK)
    with ours(shop, EXTRA="1"):
        assert "tasks" not in findings(shop)
