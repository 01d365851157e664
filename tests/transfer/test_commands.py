"""`jobs import` and `jobs export`: what they print, what they write, and how they end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_sqlbeat.cli import sqlbeat

Run = Callable[..., Result]
GOOD: dict[str, Any] = {"name": "a", "task": "shop.a", "schedule": "every 5m"}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command of a shop whose tables are there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SQLBEAT_DATABASE_URL", raising=False)

    def invoke(*arguments: str, text: str | bytes | None = None, **conf: Any) -> Result:
        app = Celery("shop", broker="memory://", set_as_current=False)
        app.conf.update(timezone="UTC", result_expires=None, **conf)
        app.task(name="shop.a", shared=False)(task)
        context = CLIContext(app=app, no_color=True, workdir=None)
        return CliRunner().invoke(sqlbeat, arguments, input=text, obj=context)

    assert invoke("init").exit_code == 0
    return invoke


def task(*args: Any) -> None:
    """Run as the task of these jobs."""


def lines(*jobs: dict[str, Any]) -> str:
    return "".join(json.dumps({**GOOD, **job}) + "\n" for job in jobs)


def names(run: Run) -> list[str]:
    return [job["name"] for job in json.loads(run("jobs", "list", "--json").output)]


def test_a_file_comes_in(run: Run, tmp_path: Path) -> None:
    (tmp_path / "jobs.jsonl").write_text(lines({}, {"name": "b"}))
    done = run("jobs", "import", "jobs.jsonl")
    assert (done.exit_code, done.output) == (0, "2 added\n")
    assert names(run) == ["a", "b"]
    assert run("jobs", "import", "jobs.jsonl").output == "2 the same\n"


def test_standard_input_comes_in(run: Run) -> None:
    assert run("jobs", "import", "-", text=lines({"args": ["ü"]})).output == "1 added\n"
    assert names(run) == ["a"]


def test_a_dry_run_prints_the_plan_and_writes_nothing(run: Run) -> None:
    done = run("jobs", "import", "-", "--dry-run", "--utc", text=lines({}, {"name": "b", "enabled": False}))
    assert done.exit_code == 0
    header, first, second, *said = done.output.splitlines()
    assert header.split()[:3] == ["JOB", "WHAT", "SCHEDULE"]
    assert first.split()[:4] == ["a", "add", "every", "5m"] and second.split()[0] == "b"
    assert said == ["2 to add", "nothing was written (--dry-run)"]
    assert names(run) == []


def test_one_wrong_line_keeps_all_of_them_out(run: Run) -> None:
    text = lines({}, {"name": "b", "schedule": "evry 5m"}) + '{"name": 5}\n'
    done = run("jobs", "import", "-", text=text)
    assert done.exit_code == 1
    wrong, other, last = done.stderr.splitlines()
    assert wrong.startswith("line 2, schedule = 'evry 5m': a schedule is one of")
    assert other.startswith("line 3, name = 5: write the name of a job")
    assert last == "Error: 2 lines cannot work, so nothing was written: put them right and import again"
    assert names(run) == []


def test_of_very_many_wrong_lines_the_first_are_shown(run: Run) -> None:
    done = run("jobs", "import", "-", text="x\n" * 30)
    assert done.stderr.count(": not JSON (expecting value at character 1)") == 20 and "... and 10 more" in done.stderr


def test_wrong_lines_as_json(run: Run) -> None:
    done = run("jobs", "import", "-", "--json", text=lines({"schedule": "evry"}))
    found = json.loads(done.stdout)
    assert done.exit_code == 1 and found["imported"] is False
    assert [(one["line"], one["field"]) for one in found["errors"]] == [(1, "schedule")]


def test_what_was_done_as_json(run: Run) -> None:
    found = json.loads(run("jobs", "import", "-", "--json", text=lines({})).stdout)
    assert found["imported"] is True
    assert found["counts"] == {"add": 1, "change": 0, "code": 0, "same": 0, "left": 0}
    assert [(job["name"], job["action"], job["schedule"]) for job in found["jobs"]] == [("a", "add", "every 5m")]


def test_a_job_that_the_code_defines_is_left_and_said(run: Run) -> None:
    conf = {"beat_schedule": {"a": {"task": "shop.a", "schedule": 60.0}}}
    done = run("jobs", "import", "--from", "beat_schedule", **conf)
    assert done.exit_code == 0 and done.output.splitlines()[-1] == "1 of the code"
    done = run("jobs", "import", "-", text=lines({}, {"name": "b"}), **conf)
    assert done.exit_code == 1
    assert "the beat_schedule of shop defines it" in done.output
    assert done.output.splitlines()[-1] == "1 added, 1 left behind"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["import"], "name a file of JSON Lines, or one of --from"),
        (["import", "file", "--from", "redbeat"], "--from redbeat takes no file"),
        (["import", "--from", "cron"], "'cron' is not one of"),
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], hint: str) -> None:
    done = run("jobs", *arguments)
    assert done.exit_code == 2 and hint in done.output


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["import", "nowhere.jsonl"], "nowhere.jsonl"),
        (["import", "--from", "shelve"], "there is no file celerybeat-schedule"),
        (["import", "--from", "shelve", "nowhere"], "there is no file nowhere"),
        (["export", "no/folder/jobs.jsonl"], "no/folder"),
    ],
)
def test_what_is_not_there_is_one_line(run: Run, arguments: list[str], hint: str) -> None:
    done = run("jobs", *arguments)
    assert done.exit_code == 1
    assert done.output.startswith("Error: ") and done.output.count("\n") == 1 and hint in done.output


def test_bytes_that_are_no_text_are_named_by_their_line(run: Run) -> None:
    done = run("jobs", "import", "-", text=lines({}).encode() + b'{"name": "\xff"}\n')
    assert done.exit_code == 1 and "line 2: not UTF-8" in done.output
    assert names(run) == []


def test_tables_that_are_not_there_are_said(run: Run, tmp_path: Path) -> None:
    done = run("jobs", "import", "-", text=lines({}), sqlbeat_database_url="sqlite:///other.db")
    assert done.exit_code == 1 and "sqlbeat init" in done.output


def test_jobs_go_out_and_come_in(run: Run, tmp_path: Path) -> None:
    text = lines(
        {"args": ["ü"], "timezone": "Europe/Berlin"}, {"name": "b", "enabled": False, "disabled_reason": "why"}
    )
    run("jobs", "import", "-", text=text)
    done = run("jobs", "export", "jobs.jsonl")
    assert (done.exit_code, done.stderr) == (0, "2 jobs written\n")
    written = (tmp_path / "jobs.jsonl").read_text(encoding="utf-8")
    assert run("jobs", "export").stdout == written
    assert not (tmp_path / "jobs.jsonl.part").exists()
    conf = {"sqlbeat_namespace": "other"}
    assert run("jobs", "import", "jobs.jsonl", **conf).output == "2 added\n"
    assert run("jobs", "export", **conf).stdout == written
    states = [json.loads(line).keys() & {"next_run_time", "disabled_reason"} for line in written.splitlines()]
    assert states == [{"next_run_time"}, {"next_run_time", "disabled_reason"}]
    assert "next_run_time" not in run("jobs", "export", "--no-state").stdout


def test_jobs_of_the_code_are_left_to_it(run: Run) -> None:
    run("jobs", "import", "--from", "beat_schedule", beat_schedule={"a": {"task": "shop.a", "schedule": 60.0}})
    done = run("jobs", "export")
    assert (done.stdout, done.stderr) == ("", "0 jobs written, 1 left to their code\n")


def test_an_export_that_fails_leaves_the_old_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("jobs", "import", "-", text=lines({}))
    (tmp_path / "jobs.jsonl").write_text("old")

    def fail(*_: Any) -> Any:
        raise OSError("the disk is full")

    monkeypatch.setattr("celery_sqlbeat.transfer.jsonl.line_of", fail)
    done = run("jobs", "export", "jobs.jsonl")
    assert done.exit_code == 1 and "the disk is full" in done.output
    assert (tmp_path / "jobs.jsonl").read_text() == "old"
    assert sorted(path.name for path in tmp_path.glob("jobs*")) == ["jobs.jsonl"]


def test_a_job_that_cannot_run_is_said_and_the_others_go_out(run: Run, tmp_path: Path) -> None:
    import sqlite3

    run("jobs", "import", "-", text=lines({}, {"name": "b"}))
    with sqlite3.connect(tmp_path / "sqlbeat.db") as database:
        database.execute("UPDATE Jobs SET Schedule = 'evry 5m' WHERE JobName = 'a'")
    database.close()
    done = run("jobs", "export")
    assert done.exit_code == 1
    assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == ["b"]
    assert "Error: job 'a' is left out: Schedule = 'evry 5m'" in done.stderr


def test_a_database_that_goes_away_in_the_middle_says_how_far_it_came(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_sqlbeat.errors import DatabaseUnavailable
    from celery_sqlbeat.store.sql.store import SqlStore

    write_jobs, calls = SqlStore.write_jobs, []

    def once(store: Any, *batch: Any, **how: Any) -> Any:
        calls.append(batch)
        if len(calls) > 1:
            raise DatabaseUnavailable("the database is away")
        return write_jobs(store, *batch, **how)

    monkeypatch.setattr(SqlStore, "write_jobs", once)
    text = lines(*({"name": f"job-{number:04}"} for number in range(700)))
    done = run("jobs", "import", "-", text=text)
    assert done.exit_code == 1
    assert done.output == "Error: the database is away; 500 jobs were done before that: import again to go on\n"
    assert len(names(run)) == 500
    monkeypatch.setattr(SqlStore, "write_jobs", write_jobs)
    assert run("jobs", "import", "-", text=text).output == "200 added, 500 the same\n"
