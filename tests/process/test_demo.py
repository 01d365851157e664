"""The demonstration as a new user runs it, and the commands of the example project's README."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import psycopg
import pytest

from celery_sqlbeat.cli.init import project_root
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.store import open_store
from celery_sqlbeat.store.records import RunQuery
from example_project.demo import surroundings
from tests import mariadb
from tests.support.beats import PATIENCE, wait_for
from tests.support.views import AdminView

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "celery", "sqlbeat", "demo"]
TABLES = ("Jobs", "JobRuns", "Nodes", "Releases", "DeletedJobs", "Locks", "IdempotencyKeys", "Changes")
LONGEST = 75.0  # seconds, as promised; a busy machine is given twice that before the test fails

pytestmark = pytest.mark.slow


def start(temporary: Path, *options: str) -> "subprocess.Popen[str]":
    environ = {**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*COMMAND, *options], cwd=ROOT, env=environ, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def processes_in(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cwd"]):
        cwd = process.info["cwd"]
        if cwd and str(folder) in cwd:
            found.append(process)
    return found


def assert_nothing_is_left(temporary: Path) -> None:
    wait_for(lambda: not processes_in(temporary), PATIENCE, lambda: str(processes_in(temporary)))
    assert [path.name for path in temporary.iterdir() if path.name.startswith("sqlbeat-demo")] == []


def test_the_demonstration_ends_by_itself_with_a_clean_audit(tmp_path: Path) -> None:
    assert_clean_audit(start(tmp_path), tmp_path)


@pytest.mark.parametrize("server", ["postgresql", "mysql"])
def test_the_demonstration_runs_on_a_server_and_leaves_nothing_there(
    tmp_path: Path, server: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{server}_database")()
    assert_clean_audit(start(tmp_path, "--database", url), tmp_path)
    assert {table: rows_in(url, table) for table in TABLES} == dict.fromkeys(TABLES, 0)


def rows_in(url: str, table: str) -> int:
    """Count the rows of a table, past the store."""
    counts = f"SELECT count(*) AS Found FROM {table}"
    if url.startswith("mysql"):
        with contextlib.closing(mariadb.connect(url)) as connection:
            return int(mariadb.execute(connection, counts)[0]["found"])
    with psycopg.connect(url) as connection:
        [(found,)] = connection.execute(counts)
        return int(found)


def test_a_database_that_other_processes_cannot_see_is_refused_in_one_line(tmp_path: Path) -> None:
    process = start(tmp_path, "--database", "sqlite:///:memory:")
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1 and not out
    assert err.startswith("Error: beats and workers are processes") and err.count("\n") == 1


def assert_clean_audit(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    out, err = process.communicate(timeout=2 * LONGEST)
    assert process.returncode == 0, out + err
    last = out.splitlines()[-1]
    found = re.fullmatch(r"slots: (\d+)  duplicates: 0  lost: 0  taken over: (\d+)", last)
    assert found, out
    assert int(found.group(1)) >= 10
    if "not seen in time" not in out:  # which a machine that is very busy may say
        assert int(found.group(2)) >= 1, out
        for event in (
            "kill -9 beat",
            "carries on",
            "longer than its lease",
            "kill -9 worker",
            "takes build-report over",
        ):
            assert event in out
        assert "is a dead letter" in out
        assert "the crontab fires" in out
    assert_nothing_is_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_demonstration_with_all_its_processes_and_files(tmp_path: Path, number: int) -> None:
    process = start(tmp_path)
    wait_for(lambda: len(processes_in(tmp_path)) >= 9, PATIENCE)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, out + err
    assert "nothing is left behind" in err
    assert "Traceback" not in out + err
    assert_nothing_is_left(tmp_path)


def test_the_example_project_runs_by_the_commands_of_its_page(tmp_path: Path) -> None:
    environ = {name: value for name, value in surroundings(os.environ).items() if not name.startswith("SQLBEAT_")}
    environ["PYTHONPATH"] = os.pathsep.join([str(project_root()), environ["PYTHONPATH"]])
    page = (project_root() / "example_project" / "README.md").read_text()
    commands = re.findall(r"^\$ (celery .*?)(?: +#.*)?$", page, re.MULTILINE)
    assert [command.split()[3] for command in commands] == ["sqlbeat", "worker", "beat"]
    processes = []
    try:
        for command in commands:
            words = [sys.executable, "-m", *command.split()]
            with (tmp_path / "log").open("ab") as log:
                process = subprocess.Popen(
                    words, cwd=tmp_path, env=environ, stdout=log, stderr=log, start_new_session=True
                )
            if words[5] == "sqlbeat":
                assert process.wait(PATIENCE) == 0
            else:
                processes.append(process)
        store = open_store(read_settings({"sqlbeat_database_url": f"sqlite:///{tmp_path / 'sqlbeat.db'}"}, {}))

        def done() -> set[str]:
            return {run.job_name for run in AdminView(store).runs(RunQuery(page_size=100)) if run.state == "success"}

        wait_for(lambda: {"ping-shops", "count-orders"} <= done(), 2 * PATIENCE, (tmp_path / "log").read_text)
        store.close()
    finally:
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + 15
        for process in processes:
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert re.search(r"ping_shops\[[0-9a-f-]{36}\]: begun on celery@", (tmp_path / "log").read_text())
