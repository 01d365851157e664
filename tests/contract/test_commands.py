"""Every command against a real database.

What it prints for people, what it prints for programs, how it exits.
"""

import inspect
import itertools
import json
import os
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from celery import Celery
from celery.beat import BeatLazyFunc
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result
from cryptography.fernet import Fernet

from celery_sqlbeat.api import Handle
from celery_sqlbeat.cli import sqlbeat
from celery_sqlbeat.config.policy import policies_from_setting
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.environment import Ids
from celery_sqlbeat.model import Node, StartedRun, StartRequest
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.lifecycle import DLQ, RETRY, Ending, after_success
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.store import open_store
from tests.support.claiming import claim_due
from tests.support.views import BeatView, NodeView, WorkerView, sql_store

# Click before 8.2 mixes standard error into the output unless it is told not to; later ones cannot
# be told.
_SEPARATE: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
RUNNER = CliRunner(**_SEPARATE)
INSTANT = {"type": ["string", "null"], "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"}
TEXT, TEXT_OR_NULL = {"type": "string"}, {"type": ["string", "null"]}
NUMBER, NUMBER_OR_NULL = {"type": "number"}, {"type": ["number", "null"]}
WHOLE, FLAG = {"type": "integer"}, {"type": "boolean"}


def thing(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def many(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema}


JOB = thing(
    name=TEXT,
    state={"enum": ["waits", "held", "retries", "paused", "set aside", "deleted"]},
    task=TEXT_OR_NULL,
    schedule=TEXT,
    timezone=TEXT_OR_NULL,
    args={"anyOf": [{"type": "array"}, {"const": "***"}]},
    kwargs={"anyOf": [{"type": "object"}, {"const": "***"}]},
    options={"type": "object"},
    policies={"type": "object"},
    sensitive=FLAG,
    enabled=FLAG,
    disabled_reason=TEXT_OR_NULL,
    start=INSTANT,
    next_run_time=INSTANT,
    last_run_time=INSTANT,
    retry_at=INSTANT,
    locked_by=TEXT_OR_NULL,
    locked_at=INSTANT,
    lease_ends_at=INSTANT,
    fence=WHOLE,
    run_id=TEXT_OR_NULL,
    quarantine=TEXT_OR_NULL,
    code_owner=TEXT_OR_NULL,
    deleted=FLAG,
    version=WHOLE,
    read_at=INSTANT,
    id=TEXT,
)
RUN = thing(
    id=TEXT,
    job_name=TEXT_OR_NULL,
    kind={"enum": ["schedule", "manual", "one_off"]},
    scheduled_for=INSTANT,
    last_slot=INSTANT,
    slots=WHOLE,
    attempt=WHOLE,
    state=TEXT,
    reason=TEXT_OR_NULL,
    claimed_by=TEXT_OR_NULL,
    claimed_at=INSTANT,
    published_at=INSTANT,
    started_by=TEXT_OR_NULL,
    started_at=INSTANT,
    finished_at=INSTANT,
    due_at=INSTANT,
    failures=WHOLE,
    lost_leases=WHOLE,
    error=TEXT_OR_NULL,
    traceback=TEXT_OR_NULL,
    fence=WHOLE,
    created_at=INSTANT,
    job_id=TEXT,
    seconds=NUMBER_OR_NULL,
    task=TEXT_OR_NULL,
    is_new=FLAG,
    effects_done=FLAG,
)
PROCESS = thing(
    id=TEXT,
    kind={"enum": ["beat", "worker"]},
    host=TEXT,
    pid=WHOLE,
    state={"enum": ["alive", "silent", "stopped"]},
    version=TEXT,
    release=TEXT_OR_NULL,
    queues=many(TEXT),
    broker=TEXT_OR_NULL,
    claimed=WHOLE,
    skew_seconds=NUMBER_OR_NULL,
    started_at=INSTANT,
    heartbeat_at=INSTANT,
    silent_seconds=NUMBER,
    app=TEXT_OR_NULL,
    unleasable=many(TEXT),
)
COUNTS = {"type": "object", "additionalProperties": WHOLE}
STATUS = thing(
    database=TEXT,
    namespace=TEXT,
    store=TEXT,
    epoch=WHOLE,
    schema_version=WHOLE,
    schema_known=WHOLE,
    now=INSTANT,
    skew_seconds=NUMBER,
    jobs=COUNTS,
    lag_seconds=NUMBER,
    dead_letters=WHOLE,
    last_hour=COUNTS,
    processes=many(PROCESS),
)
SLOT = thing(
    scheduled_for=INSTANT, last_slot=INSTANT, slots=WHOLE, kind=TEXT, state=TEXT, says=TEXT, attempts=many(TEXT)
)
EXPLANATION = thing(
    job=JOB,
    now=many(TEXT),
    slots=many(SLOT),
    next_fires=many(thing(at=INSTANT, local=TEXT, note=TEXT_OR_NULL)),
    remarks=many(TEXT),
)
FINDING = thing(level={"enum": ["error", "warning", "note"]}, name=TEXT, says=TEXT, remedy=TEXT)
SYMBOL = thing(
    symbol=TEXT,
    part={"enum": ["worker", "beat"]},
    kind={"enum": ["attribute", "called", "replaced", "named"]},
    expected=many(TEXT),
    since=TEXT,
    required=FLAG,
    feature=TEXT_OR_NULL,
    lost=TEXT,
    state={"enum": ["held", "missing", "not loaded"]},
    difference=TEXT_OR_NULL,
)
TEXTS = {"type": "object", "additionalProperties": TEXT}
LIBRARIES = thing(versions=TEXTS, features_off=TEXTS, symbols=many(SYMBOL))
CHECK = thing(ok=FLAG, findings=many(FINDING), libraries=LIBRARIES)
HEALTH = thing(healthy=FLAG, problems=many(TEXT), warnings=many(TEXT))


def add(*numbers: int, k: int = 0) -> int:
    return sum(numbers)


def pair(a: int, b: int) -> int:
    """Return a task that takes two arguments."""
    return a + b


class Shop:
    """An app on a database, its command line, and short words for the work of beats and workers."""

    def __init__(self, url: str, namespace: str) -> None:
        self.conf: dict[str, Any] = {"sqlbeat_database_url": url, "sqlbeat_namespace": namespace}
        self.app = Celery("shop", broker="memory://", set_as_current=False)
        self.app.conf.update(timezone="UTC", **self.conf)
        self.app.task(name="shop.add", shared=False)(add)
        self.app.task(name="shop.pair", shared=False)(pair)
        self.store = open_store(read_settings(self.conf, {}))
        self.beat = Handle(self.app, read_settings(self.conf, {}), self.store)

    def run(self, *arguments: str) -> Result:
        return RUNNER.invoke(sqlbeat, arguments, obj=CLIContext(app=self.app, no_color=True, workdir=None))

    def says(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, schema: dict[str, Any], *arguments: str, exit_code: int = 0) -> Any:
        result = self.run(*arguments, "--json")
        assert result.exit_code == exit_code, result.output
        found = json.loads(result.stdout)
        jsonschema.validate(found, schema)
        return found

    def refuses(self, *arguments: str, exit_code: int = 1) -> str:
        result = self.run(*arguments)
        assert result.exit_code == exit_code, result.output
        assert "Traceback" not in result.output
        if exit_code == 1:
            assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1, result.output
        return result.stderr

    def statement(self, text: str) -> None:
        """Change rows of this namespace by hand."""
        session = sql_store(self.store).database.dialect.connect()
        session.begin()
        session.script(f"{text} AND Namespace = '{self.store.namespace}'")
        session.commit()
        session.close()

    def put(self, name: str = "a", *more: str, schedule: str = "every 1h") -> None:
        self.says("jobs", "put", name, "--task", "shop.add", "--schedule", schedule, *more)

    def start(self, name: str = "a") -> StartedRun:
        """Let a beat and a worker take one more slot of a job."""
        ids = Ids()
        self.beat.jobs.run_now(name)
        planner = Planner(Rules(policies_from_setting({}), "UTC", 120.0, 3))
        claims = claim_due(BeatView(self.store, "beat-1"), planner, 10, 15.0).claims
        (claim,) = (claim for claim in claims if claim.job_name == name)
        BeatView(self.store, "beat-1").mark_published([(claim, 120.0)])
        request = StartRequest(claim.run_id, claim.claim_id, claim.fence, ids.random_id(), 0)
        return WorkerView(self.store, "worker-1").start([request])[claim.run_id]

    def fire(self, name: str = "a", ending: Ending | None = None) -> StartedRun:
        """Let one more slot of a job run to its end."""
        run = self.start(name)
        WorkerView(self.store, "worker-1").finish([(run, ending or after_success())])
        return run

    def die(self, name: str = "a") -> StartedRun:
        return self.fire(name, Ending(DLQ, "retries exhausted", None, 1, 0, "ValueError: no [bold]", "Traceback ..."))


@pytest.fixture(scope="session", params=["sqlite", "postgresql", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a database with tables in it, of each kind in turn."""
    where = f"sqlite:///{tmp_path_factory.mktemp('commands') / 'jobs.db'}"
    if request.param != "sqlite":
        where = request.getfixturevalue(f"{request.param}_database")()
    store = open_store(read_settings({"sqlbeat_database_url": where}, {}))
    store.migrate()
    store.close()
    return where


@pytest.fixture
def shop(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    for name in [name for name in os.environ if name.startswith("SQLBEAT_") and "TEST" not in name]:
        monkeypatch.delenv(name)
    made = Shop(url, f"test-{secrets.token_hex(6)}")
    yield made
    made.store.close()


def test_jobs_are_put_and_listed(shop: Shop) -> None:
    assert shop.says("jobs", "list") == "no jobs\n"
    shop.put("nightly", "--args", "[1, 2]", "--timezone", "Europe/Berlin", schedule="cron 0 3 * * *")
    shop.put("often", schedule="5")
    header, nightly, often = shop.says("jobs", "list", "--utc").splitlines()
    assert re.split(r"\s{2,}", header) == ["JOB", "SCHEDULE", "STATE", "NEXT RUN (UTC)"]
    assert re.split(r"\s{2,}", nightly)[:3] == ["nightly", "cron 0 3 * * *", "waits"]
    assert re.split(r"\s{2,}", often)[:3] == ["often", "every 5s", "waits"]
    first, second = shop.json(many(JOB), "jobs", "list")
    assert (first["name"], first["args"], first["timezone"]) == ("nightly", [1, 2], "Europe/Berlin")
    assert (second["name"], second["schedule"]) == ("often", "every 5s")


def test_every_policy_is_an_option_of_put(shop: Shop) -> None:
    options = {
        "cadence": "fixed_rate",
        "overlap": "allow",
        "misfire": "catch_up",
        "misfire_grace": 30.0,
        "catch_up_limit": 5,
        "max_retries": 1,
        "lock_timeout": 300.0,
        "jitter": 2.0,
    }
    arguments = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    shop.put("a", *arguments)
    assert shop.json(JOB, "jobs", "show", "a")["policies"] == options


def test_a_definition_has_the_other_options_too(shop: Shop) -> None:
    start = "2030-01-01T00:00:00Z"
    shop.put("a", "--kwargs", '{"k": 1}', "--options", '{"queue": "q"}', "--start", start, "--disabled")
    found = shop.json(JOB, "jobs", "show", "a")
    assert (found["kwargs"], found["options"], found["enabled"]) == ({"k": 1}, {"queue": "q"}, False)
    assert found["start"] == found["next_run_time"] == start
    assert shop.json(JOB, "jobs", "put", "a", "--task", "t", "--schedule", "60", "--enabled")["enabled"]


def test_show_tells_everything_about_a_job(shop: Shop) -> None:
    shop.put("a", "--start", "2030-01-01T00:00:00Z")
    run = shop.start()
    shop.beat.jobs.pause("a", "month end")
    text = shop.says("jobs", "show", "a")
    for part in ("held (month end)", "2030-01-01 00:00:00 UTC", "held by     worker-1", run.run_id, "lease ends"):
        assert part in text
    WorkerView(shop.store, "worker-1").finish([(run, Ending(RETRY, "failed", 60.0, 1))])
    assert "the database" in shop.says("jobs", "show", "a")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["jobs", "put", "a", "--task", "t", "--schedule", "x"], "Schedule = 'x': a schedule is one of"),
        (["jobs", "put", "a", "--schedule", "5"], "TaskName = None"),
        (["jobs", "put", "a", "--task", "t", "--schedule", "5", "--jitter", "-1"], "Policies.jitter = -1.0"),
        (["jobs", "put", "a", "--task", "t", "--schedule", "5", "--version", "3"], "no longer at version 3"),
        (["jobs", "show", "nobody"], "there is no job 'nobody'"),
        (["jobs", "pause", "nobody"], "there is no job 'nobody'"),
        (["jobs", "resume", "nobody"], "there is no job 'nobody'"),
        (["jobs", "run-now", "nobody"], "there is no job 'nobody'"),
        (["jobs", "delete", "nobody", "--yes"], "there is no job 'nobody'"),
        (["explain", "nobody"], "there is no job 'nobody'"),
        (["runs", "list", "nobody"], "there is no job 'nobody'"),
        (["runs", "show", "nothing"], "there is no run 'nothing'"),
        (["runs", "cancel", "nothing"], "there is no run 'nothing'"),
        (["jobs", "pause", "nobody", "--cancel-run"], "there is no job 'nobody'"),
        (["dead", "replay", "nothing"], "there is no run 'nothing'"),
        (["dead", "purge", "nothing", "--yes"], "there is no run 'nothing'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "says",
)
def test_an_error_is_one_line_that_says_what_is_wrong(shop: Shop, arguments: list[str], says: str) -> None:
    assert says in shop.refuses(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["jobs", "put", "a", "--args", "{"],
        ["jobs", "put", "a", "--overlap", "maybe"],
        ["jobs", "put"],
        ["runs", "list", "--state", "odd"],
        ["runs", "list", "--limit", "0"],
        ["dead", "purge", "--yes"],
        ["dead", "replay"],
        ["explain"],
        ["check", "--timeout", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(shop: Shop, arguments: list[str]) -> None:
    assert "Error: " in shop.refuses(*arguments, exit_code=2)


def test_a_job_is_paused_and_resumed(shop: Shop) -> None:
    shop.put()
    assert shop.says("jobs", "pause", "a", "--reason", "month end") == "a is paused: month end\n"
    assert shop.json(JOB, "jobs", "pause", "a")["disabled_reason"] == "month end"
    assert "goes on; next run" in shop.says("jobs", "resume", "a")
    assert shop.json(JOB, "jobs", "resume", "a")["enabled"]
    version = shop.json(JOB, "jobs", "show", "a")["version"]
    for words in (["pause", "a"], ["resume", "a"], ["delete", "a", "--yes"], ["put", "a", "--task", "t"]):
        for wrong in (0, version + 1):
            says = (
                shop.refuses("jobs", *words, "--schedule", "5", "--version", str(wrong))
                if words[0] == "put"
                else (shop.refuses("jobs", *words, "--version", str(wrong)))
            )
            assert says == f"Error: 'a' is no longer at version {wrong}: read it again and repeat the change\n"
    assert shop.says("jobs", "delete", "a", "--yes", "--version", str(version)) == "a is deleted\n"


def test_a_lock_is_taken_away_at_the_fence_that_was_read(shop: Shop) -> None:
    with shop.beat.lock("stock") as lock:
        words = ["locks", "release", "stock", "--force", "--version"]
        assert "'stock' is no longer at version 0" in shop.refuses(*words, "0")
        assert "the lock stock is free" in shop.says(*words, str(lock.fence))


SECRET = "4711-0815"
READING: list[list[str]] = [
    ["jobs", "list"],
    *([verb, *words, name] for verb, *words in (["jobs", "show"], ["explain"]) for name in ("card", "broken", "wrong")),
    ["runs", "list"],
    ["runs", "show", "RUN"],
    ["runs", "show", "DEAD"],
    ["dead", "list"],
    ["status"],
    ["health"],
    ["check", "--timeout", "0.1"],
    ["jobs", "pause", "card"],
    ["jobs", "resume", "card"],
    ["jobs", "run-now", "card"],
    ["dead", "replay", "--all"],
    ["jobs", "put", "card", "--task", "shop.pair", "--schedule", "60", "--sensitive", "--args", f'["{SECRET}"]'],
    ["jobs", "put", "card", "--task", "shop.add", "--schedule", "60", "--sensitive", "--args", f'["{SECRET}"]'],
    ["jobs", "put", "card", "--task", "shop.add", "--schedule", "60", "--sensitive", "--args", f'["{SECRET}'],
    ["jobs", "put", "card", "--task", "shop.add", "--schedule", "60", "--sensitive", "--kwargs", f'["{SECRET}"]'],
]


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_no_command_shows_the_arguments_of_a_sensitive_job(shop: Shop, as_json: bool) -> None:
    shop.put("card", "--sensitive", "--args", f'["{SECRET}"]', "--kwargs", f'{{"k": "{SECRET}"}}')
    shop.put("wrong", "--sensitive", "--args", f'["{SECRET}"]')
    shop.statement("UPDATE Jobs SET TaskName = 'shop.pair' WHERE JobName = 'wrong'")  # which takes two
    shop.put("broken", "--sensitive")
    shop.statement(f"UPDATE Jobs SET Args = '[{SECRET}' WHERE JobName = 'broken'")
    planner = Planner(Rules(policies_from_setting({}), "UTC", 120.0, 3))
    shop.beat.jobs.run_now("broken")
    assert not claim_due(BeatView(shop.store, "beat-1"), planner, 10, 15.0).claims
    run, dead = shop.fire("card"), shop.die("card")
    said = ""
    for words in READING:
        arguments = [{"RUN": run.run_id, "DEAD": dead.run_id}.get(word, word) for word in words]
        result = shop.run(*arguments, *(["--json"] if as_json else []))
        assert result.exit_code in (0, 1, 2) and isinstance(result.exception, SystemExit | None), result.exception
        said += result.stdout + result.stderr
        assert SECRET not in result.stdout + result.stderr, words
    assert "***" in said and "Args = '***'" in said, "what is shown in their place"
    result = shop.run("jobs", "export")
    assert SECRET not in result.stdout + result.stderr and result.exit_code == 1
    assert "Error: job 'card' is left out: Args = '***': the job is sensitive" in result.stderr
    assert f'"args": ["{SECRET}"]' in shop.run("jobs", "export", "--with-secrets").stdout


def test_arguments_are_encrypted_by_init_once_there_is_a_key(shop: Shop, tmp_path: Path) -> None:
    shop.put("a", "--args", f'["{SECRET}"]')
    assert "there is no key to encrypt with" in shop.refuses("init", "--reencrypt")
    shop.app.conf.sqlbeat_payload_key = f"file:{tmp_path / 'keys'}"
    assert "the file cannot be read: No such file" in shop.refuses("init", "--reencrypt")
    assert "the file cannot be read: No such file" in shop.refuses(
        "jobs", "put", "b", "--task", "t", "--schedule", "5", "--args", "[1]"
    )
    (tmp_path / "keys").write_text(key := Fernet.generate_key().decode())
    assert "the arguments of 1 jobs and one-offs are encrypted with the newest key now" in shop.says(
        "init", "--reencrypt"
    )
    assert "the arguments of 0 jobs" in shop.says("init", "--reencrypt")
    assert shop.json(JOB, "jobs", "show", "a")["args"] == [SECRET]
    assert "leave out --json, --recovered and --reencrypt" in shop.refuses("init", "--sql", "--reencrypt", exit_code=2)
    (tmp_path / "keys").write_text(Fernet.generate_key().decode())
    assert "no key of sqlbeat_payload_key opens the arguments of a\n" in shop.refuses("init", "--reencrypt")
    result = shop.run("init", "--reencrypt", "--json")
    assert json.loads(result.stdout)["reencrypted"] == {"jobs": 0, "locked": ["a"], "changing": []}
    (shown,) = json.loads(shop.says("jobs", "list", "--json"))
    assert shown["args"] == "***"
    for words in (["status"], ["check", "--timeout", "0.1"], ["jobs", "show", "a"], ["explain", "a"]):
        result = shop.run(*words)
        assert key not in result.output and SECRET not in result.output
    assert "arguments are encrypted, and no key of this process opens them" in shop.run("explain", "a").output


def test_a_job_without_a_slot_left_stays_disabled_and_says_so(shop: Shop) -> None:
    shop.put(schedule="once 2020-01-01T00:00:00Z")
    shop.says("jobs", "pause", "a")
    assert "a stays disabled (finished)" in shop.says("jobs", "resume", "a")


def test_a_job_runs_now(shop: Shop) -> None:
    shop.put()
    run = shop.json(RUN, "jobs", "run-now", "a")
    assert run["kind"] == "manual"
    assert re.fullmatch(r"a runs once more: run [-0-9a-f]{36}\n", shop.says("jobs", "run-now", "a"))
    shop.says("jobs", "pause", "a")
    assert "not before it is resumed" in shop.says("jobs", "run-now", "a")


def test_nothing_is_destroyed_without_yes_where_nobody_can_be_asked(shop: Shop) -> None:
    shop.put()
    shop.die()
    assert "add --yes" in shop.refuses("jobs", "delete", "a")
    assert "add --yes" in shop.refuses("dead", "purge", "--all")
    assert len(shop.beat.jobs.list()) == len(shop.beat.dead.list()) == 1


def test_a_job_is_deleted(shop: Shop) -> None:
    shop.put()
    assert shop.says("jobs", "delete", "a", "--yes") == "a is deleted\n"
    shop.put()
    run = shop.start()
    schema = thing(name=TEXT, deleted=FLAG, waits_for=TEXT_OR_NULL)
    assert shop.json(schema, "jobs", "delete", "a", "--yes") == {"name": "a", "deleted": False, "waits_for": run.run_id}
    assert "is deleted as soon as its run has ended" in shop.refuses("jobs", "pause", "a")
    assert shop.json(schema, "jobs", "delete", "a", "--yes", "--force")["deleted"]


def test_runs_are_listed_and_shown(shop: Shop) -> None:
    assert shop.says("runs", "list") == "no runs\n"
    shop.put()
    run = shop.fire()
    dead = shop.die()
    assert [each["id"] for each in shop.json(many(RUN), "runs", "list")] == [dead.run_id, run.run_id]
    assert [each["id"] for each in shop.json(many(RUN), "runs", "list", "a", "--state", "success")] == [run.run_id]
    assert len(shop.json(many(RUN), "runs", "list", "--limit", "1")) == 1
    header, *lines = shop.says("runs", "list", "--utc").splitlines()
    assert re.split(r"\s{2,}", header) == ["RUN", "JOB", "SLOT (UTC)", "NO.", "STATE"]
    assert "dlq (retries exhausted)" in lines[0] and lines[1].endswith("success")
    assert shop.json(RUN, "runs", "show", run.run_id)["seconds"] >= 0
    text = shop.says("runs", "show", dead.run_id)
    assert "ValueError: no [bold]" in text and text.endswith("\n\n  Traceback ...\n")


def test_a_run_is_cancelled_once(shop: Shop) -> None:
    shop.put()
    ended, running = shop.fire(), shop.start()
    assert shop.refuses("runs", "cancel", ended.run_id) == (
        f"Error: run {ended.run_id} has ended as success: there is nothing to cancel\n"
    )
    assert shop.says("runs", "cancel", running.run_id, "--reason", "wrong data") == (
        f"run {running.run_id} of a is being stopped by its worker, worker-1, and ends as cancelled\n"
    )
    assert json.loads(shop.says("runs", "cancel", running.run_id, "--json"))["state"] == "running"
    WorkerView(shop.store, "worker-1").finish([(running, Ending(RETRY, "failed", 60.0, 1))])
    assert shop.says("runs", "cancel", running.run_id) == f"run {running.run_id} of a is cancelled\n"
    assert "cancelled (cancelled by " in shop.says("runs", "show", running.run_id)


def test_a_job_is_paused_with_what_runs_of_it(shop: Shop) -> None:
    shop.put()
    running = shop.start()
    shop.says("jobs", "run-now", "a")
    said = shop.says("jobs", "pause", "a", "--reason", "month end", "--cancel-run").splitlines()
    assert said[0] == "a is paused: month end" and len(said) == 3
    assert sum("is being stopped" in line for line in said) == sum("is cancelled" in line for line in said) == 1
    run = shop.beat.runs.get(running.run_id)
    assert run is not None and str(run.reason).endswith(": month end")


def test_dead_letters_are_listed_replayed_and_purged(shop: Shop) -> None:
    assert shop.says("dead", "list") == "no dead letters\n"
    shop.put("a")
    shop.put("b")
    letters = [shop.die("a"), shop.die("b"), shop.die("b")]
    assert len(shop.json(many(RUN), "dead", "list")) == 3
    assert [each["job_name"] for each in shop.json(many(RUN), "dead", "list", "a")] == ["a"]
    assert "ValueError: no [bold]" in shop.says("dead", "list")
    (again,) = shop.json(many(RUN), "dead", "replay", letters[0].run_id)
    assert (again["job_name"], again["attempt"]) == ("a", 2)
    assert shop.says("dead", "replay", letters[0].run_id).startswith("nothing to replay")
    assert shop.says("dead", "replay", "--job", "b").count("attempt 2 waits as run") == 2
    assert shop.says("dead", "list", "a").splitlines()[1].endswith("replayed")
    purged = thing(purged=WHOLE)
    assert shop.json(purged, "dead", "purge", letters[0].run_id, "--yes") == {"purged": 1}
    assert shop.json(purged, "dead", "purge", "--older-than", "1", "--yes") == {"purged": 0}
    assert shop.says("dead", "purge", "--job", "b", "--yes") == "2 dead letters are gone\n"
    assert shop.json(purged, "dead", "purge", "--all", "--yes") == {"purged": 0}


def test_explain_tells_the_story_of_a_job(shop: Shop) -> None:
    shop.put()
    shop.fire()
    found = shop.json(EXPLANATION, "explain", "a")
    assert "it is not due yet" in found["now"][0]
    assert found["slots"][0]["says"].startswith("ran for")
    assert len(found["next_fires"]) == 10
    text = shop.says("explain", "a", "--slots", "3")
    assert "last slots" in text and "next fires" in text and "on worker-1" in text


def test_status_shows_jobs_and_processes(shop: Shop) -> None:
    shop.put()
    NodeView(shop.store).heartbeat(Node("beat@a/1", "beat", "a", 1, "0.1", skew_seconds=0.0))
    found = shop.json(STATUS, "status")
    assert found["jobs"]["total"] == 1 and found["processes"][0]["state"] == "alive"
    text = shop.says("status")
    assert "1 total, 1 active" in text and "beat@a/1" in text and "password" not in text


def test_health_is_an_exit_code(shop: Shop) -> None:
    assert shop.json(HEALTH, "health", exit_code=1)["problems"][0].startswith("no beat is alive")
    assert "no beat is alive" in shop.refuses("health")
    assert "neither a beat nor a worker" in shop.refuses("health", "--here")
    assert shop.says("health", "--liveness") == "healthy\n"
    NodeView(shop.store).heartbeat(Node("beat@here/1", "beat", socket.gethostname(), os.getpid(), "0.1"))
    assert shop.says("health") == shop.says("health", "--here") == "healthy\n"
    assert shop.json(HEALTH, "health", "--liveness") == {"healthy": True, "problems": [], "warnings": []}


def test_a_job_that_waits_for_too_long_is_not_healthy(shop: Shop) -> None:
    NodeView(shop.store).heartbeat(Node("beat@here/1", "beat", "here", 1, "0.1"))
    shop.put(schedule="once 2020-01-01T00:00:00Z")
    assert "a job has been due for" in shop.refuses("health")
    assert shop.says("health", "--max-lag", "1e10") == "healthy\n"


def test_check_says_what_is_wrong_and_exits_with_1(shop: Shop) -> None:
    shop.put("lost", schedule="60")
    shop.beat.jobs.put("gone", task="shop.nobody_has_it", schedule=60)
    found = shop.json(CHECK, "check", "--timeout", "0.1", exit_code=1)
    assert not found["ok"]
    (task,) = (each for each in found["findings"] if each["name"] == "tasks")
    assert task["level"] == "error" and "shop.nobody_has_it of gone" in task["says"]
    result = shop.run("check", "--timeout", "0.1")
    assert result.exit_code == 1 and "error: nobody has the task shop.nobody_has_it" in result.stdout


def test_check_takes_warnings_for_no_error_unless_it_is_strict(shop: Shop) -> None:
    found = shop.json(CHECK, "check", "--timeout", "0.1")
    assert found["ok"] and {each["level"] for each in found["findings"]} == {"warning"}
    assert not shop.json(CHECK, "check", "--timeout", "0.1", "--strict", exit_code=1)["ok"]


def test_check_prints_the_table_of_symbols_that_no_library_promises(shop: Shop) -> None:
    table = [line.split() for line in shop.says("check", "--timeout", "0.1", "--symbols").splitlines()]
    assert table[0] == ["SYMBOL", "PART", "FOR", "SINCE", "STATE"]
    state = {line[0]: (line[1], line[2], line[-1]) for line in table}
    assert state["celery.worker.worker:WorkController._process_task_sem"] == ("worker", "required", "held")


NEVER: dict[str, tuple[list[str], str, list[str]]] = {
    "too few arguments": (["--args", "[1]"], "Args = [1]", ["shop.pair", "'b'", "signature"]),
    "a wrong name": (["--args", "[1]", "--kwargs", '{"c": 2}'], "Kwargs = {'c': 2}", ["shop.pair", "'c'"]),
    "a queue": (["--args", "[1, 2]", "--options", '{"queue": "q"}'], "Options.queue = 'q'", ["task_queues", "celery"]),
    "a serializer": (["--args", "[1, 2]", "--options", '{"serializer": "x"}'], "Options.serializer = 'x'", ["json"]),
    "a compression": (["--args", "[1, 2]", "--options", '{"compression": "x"}'], "Options.compression = 'x'", ["gzip"]),
}


@pytest.mark.parametrize(("options", "field", "words"), NEVER.values(), ids=NEVER)
def test_a_job_that_could_never_be_published_is_refused_with_its_field(
    shop: Shop, options: list[str], field: str, words: list[str], tmp_path: Path
) -> None:
    shop.app.conf.task_create_missing_queues = False
    result = shop.run("jobs", "put", "a", "--task", "shop.pair", "--schedule", "60", *options)
    assert result.exit_code == 1 and field in result.stderr, result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert shop.beat.jobs.get("a") is None
    fields = {name[2:]: json.loads(value) for name, value in itertools.pairwise(options) if name.startswith("--")}
    file = tmp_path / "jobs.jsonl"
    file.write_text(json.dumps({"name": "a", "task": "shop.pair", "schedule": 60, **fields}))
    result = shop.run("jobs", "import", str(file), "--json")
    (error,) = json.loads(result.stdout)["errors"]
    named = field.split(" =")[0]
    assert error["field"] == named[0].lower() + named[1:] and result.exit_code == 1, error
    assert shop.beat.jobs.get("a") is None


def test_check_names_what_could_never_be_published(shop: Shop) -> None:
    shop.app.conf.task_create_missing_queues = False
    shop.app.conf.beat_schedule = {
        "in-the-code": {"task": "shop.pair", "schedule": 60, "args": ({1},), "options": {"serializer": "pickle"}},
        "lazy": {"task": "shop.pair", "schedule": 60, "args": (BeatLazyFunc(int),)},  # what it gives, nobody knows yet
    }
    for name, options in NEVER.items():
        shop.beat.jobs.put(name, task="shop.elsewhere", schedule=60)
        fields = {key[2:].capitalize(): value for key, value in itertools.pairwise(options[0]) if key.startswith("--")}
        sets = ", ".join(f"{column} = '{value}'" for column, value in fields.items())
        shop.statement(f"UPDATE Jobs SET TaskName = 'shop.pair', {sets} WHERE JobName = '{name}'")
    found = json.loads(shop.run("check", "--json", "--timeout", "0.1").stdout)["findings"]
    said = [each["says"] for each in found if each["name"] == "publish"]
    assert len(said) == len(NEVER) + 1, said
    for name, (_, field, _) in NEVER.items():
        assert any(f"job {name} can never be published: {field}" in each for each in said), said
    assert any("job in-the-code can never be published: Args = " in each for each in said)


def test_a_task_that_this_app_does_not_have_is_only_warned_of(shop: Shop, tmp_path: Path) -> None:
    result = shop.run("jobs", "put", "a", "--task", "shop.elsewhere", "--schedule", "60", "--args", "[1]", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["task"] == "shop.elsewhere"
    assert "shop.elsewhere" in result.stderr and "not registered" in result.stderr
    file = tmp_path / "jobs.jsonl"
    file.write_text(json.dumps({"name": "b", "task": "shop.elsewhere", "schedule": 60}))
    result = shop.run("jobs", "import", str(file))
    assert result.exit_code == 0 and "shop.elsewhere of job b is not registered" in result.stderr
    assert "not registered" not in shop.run("jobs", "put", "c", "--task", "shop.add", "--schedule", "60").stderr


def test_a_task_id_that_is_replaced_is_warned_of(shop: Shop, tmp_path: Path) -> None:
    options = {"task_id": "mine", "queue": "slow"}
    result = shop.run("jobs", "put", "a", "--task", "shop.add", "--schedule", "60", "--options", json.dumps(options))
    assert result.exit_code == 0 and "Options.task_id 'mine' of job a is replaced" in result.stderr, result.stderr
    assert "leave it out" in result.stderr
    file = tmp_path / "jobs.jsonl"
    lines = [{"name": name, "task": "shop.add", "schedule": 60, "options": options} for name in "bc"]
    file.write_text("\n".join(map(json.dumps, lines)))
    result = shop.run("jobs", "import", str(file))
    assert result.exit_code == 0 and result.stderr.count("Options.task_id 'mine' of job") == 2, result.stderr
    del options["task_id"]
    result = shop.run("jobs", "put", "a", "--task", "shop.add", "--schedule", "60", "--options", json.dumps(options))
    assert "task_id" not in result.stderr


def test_check_names_rows_that_are_set_aside_and_entries_of_the_code(shop: Shop) -> None:
    shop.app.conf.beat_schedule = {
        "good": {"task": "shop.add", "schedule": 60},
        "bad": {"task": "shop.add", "schedule": "never"},
    }
    shop.put()
    shop.statement("UPDATE Jobs SET Quarantine = 'Args = x: no' WHERE JobName LIKE '%'")
    found = {each["name"]: each for each in shop.json(CHECK, "check", "--timeout", "0.1", exit_code=1)["findings"]}
    assert "job a is set aside: Args = x: no" in found["quarantine"]["says"]
    assert "entry bad is left out" in found["beat-schedule"]["says"]
    assert found["stock"]["level"] == "note" and "good" in found["stock"]["says"]


def test_init_answers_in_json(shop: Shop) -> None:
    schema = thing(database=TEXT, applied=many(TEXT), epoch={"type": ["integer", "null"]}, raised=NUMBER_OR_NULL)
    found = shop.json(schema, "init")
    assert (found["applied"], found["epoch"], found["raised"]) == ([], None, None)
    shop.put()
    assert shop.json(schema, "init", "--recovered")["raised"] >= 1
    assert "leave out --json" in shop.refuses("init", "--sql", "--json", exit_code=2)


def test_a_mistyped_job_is_not_taken_for_one_without_dead_letters(shop: Shop) -> None:
    shop.put()
    assert shop.says("dead", "list", "a") == "no dead letters\n"
    assert "there is no job 'b'" in shop.refuses("dead", "list", "b")
    assert "there is no job 'b'" in shop.refuses("dead", "replay", "--job", "b")


def test_init_may_be_repeated_and_raises_the_fences_after_a_restore(shop: Shop) -> None:
    assert "nothing to do: the tables are up to date" in shop.says("init")
    shop.put()
    text = shop.says("init", "--recovered")
    assert re.search(r"epoch \d+: the fences of [1-9]\d* jobs and runs are raised", text)
    assert shop.json(STATUS, "status")["epoch"] > 0
    assert shop.json(JOB, "jobs", "show", "a")["fence"] > 10**9


# What people may write into a row: more lines, colours, a bell, a text that is read from right to
# left.
HOSTILE = "a\nforged  success\r\x1b[31m\x9b2J\a\u2028forged\u202e"


@pytest.fixture
def hostile_shop(shop: Shop) -> Shop:
    """Return a shop whose every text is hostile.

    Jobs in each state, their runs, a dead letter, a beat and a worker.
    """
    for name in ("waits", "held", "paused", "aside", "retries", "dead", "code", "unread"):
        shop.put(name)
    held, dead = shop.start("held"), shop.die("dead")
    shop.fire("retries", Ending(RETRY, HOSTILE, 3600.0, 1, 0, HOSTILE, HOSTILE))
    shop.beat.jobs.pause("paused", HOSTILE)
    texts = {
        "aside": {"Quarantine": HOSTILE},
        "held": {"LockedBy": HOSTILE},
        "code": {"CodeOwner": HOSTILE, "Schedule": "code"},
        "unread": {"Schedule": HOSTILE, "TimeZone": HOSTILE, "Options": HOSTILE, "Args": HOSTILE},
    }
    for name, columns in texts.items():
        sets = ", ".join(f"{column} = '{value}'" for column, value in columns.items())
        shop.statement(f"UPDATE Jobs SET {sets} WHERE JobName = '{name}'")
    shop.statement(f"UPDATE Jobs SET TaskName = '{HOSTILE}' WHERE JobName <> 'waits'")
    shop.statement(f"UPDATE Jobs SET JobName = '{HOSTILE}' || JobName WHERE JobName LIKE '%'")
    of_runs = ("JobName", "ClaimedBy", "StartedBy", "Reason", "Error", "Traceback")
    for run in (held, dead):
        sets = ", ".join(f"{column} = '{HOSTILE}'" for column in of_runs)
        shop.statement(f"UPDATE JobRuns SET {sets} WHERE RunId = '{run.run_id}'")
    details = {"refused": {HOSTILE + "waits": {"times": 5, "error": HOSTILE, "seconds_ago": 1.0}}}
    NodeView(shop.store).heartbeat(
        Node("beat@a/1" + HOSTILE, "beat", HOSTILE, 1, HOSTILE, skew_seconds=9.0, details=json.dumps(details))
    )
    NodeView(shop.store).heartbeat(
        Node("worker@b/1" + HOSTILE, "worker", HOSTILE, 2, HOSTILE, queues=json.dumps([HOSTILE]))
    )
    return shop


PRINTING = [
    ["jobs", "list"],
    *(["jobs", "show", HOSTILE + name] for name in ("waits", "held", "paused", "aside", "retries", "code", "unread")),
    *(["explain", HOSTILE + name] for name in ("waits", "held", "paused", "aside", "retries", "code", "unread")),
    ["jobs", "export"],
    ["runs", "list"],
    ["runs", "show", "HELD"],
    ["runs", "show", "DEAD"],
    ["dead", "list"],
    ["status"],
    ["health"],
    ["check", "--timeout", "0.1"],
    ["jobs", "put", HOSTILE, "--task", "x", "--schedule", "60"],
    ["jobs", "delete", HOSTILE + "waits"],  # asks
    ["dead", "purge", "--job", HOSTILE],
    ["jobs", "run-now", HOSTILE + "paused"],
    ["jobs", "pause", HOSTILE + "waits"],
    ["jobs", "resume", HOSTILE + "paused"],
    ["dead", "replay", "--all"],
    ["jobs", "adopt", "--owner", HOSTILE, "--yes"],
    ["jobs", "delete", HOSTILE + "code", "--yes"],
    ["jobs", "delete", HOSTILE + "held", "--yes"],
]


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_no_text_of_a_row_forges_a_line_of_any_command(hostile_shop: Shop, as_json: bool) -> None:
    for words in PRINTING:
        if as_json and words[:2] != ["jobs", "export"]:
            words = [*words, "--json"]
        states = {"HELD": "running", "DEAD": "dlq"}
        arguments = [
            hostile_shop.beat.runs.list(state=states[each])[0].id if each in states else each for each in words
        ]
        result = hostile_shop.run(*arguments)
        lines = (result.stdout + result.stderr).split("\n")
        assert result.exit_code in (0, 1) and isinstance(result.exception, SystemExit | None), (words, result.exception)
        assert [line for line in lines if not line.isprintable() or line.startswith("forged")] == [], words
        assert any("forged" in line for line in lines), words


def test_no_text_of_a_file_forges_a_line_of_an_import(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    wrong = [
        {"name": HOSTILE, "task": "x", "schedule": 60},
        {"name": "a", "task": "x", "schedule": HOSTILE},
        {HOSTILE: 1},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in wrong), encoding="utf-8")
    for words in ([], ["--json"]):
        result = shop.run("jobs", "import", str(file), *words)
        lines = (result.stdout + result.stderr).split("\n")
        assert result.exit_code == 1 and any("forged" in line for line in lines)
        assert [line for line in lines if not line.isprintable() or line.startswith("forged")] == []
