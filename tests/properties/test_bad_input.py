"""Whatever comes from outside ends in an answer or in an error that names it.

Never in a crash, never with a secret.
"""

import json
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from celery_sqlbeat.celery_bridge.message_header import Copied, Header, Malformed, Newer, read
from celery_sqlbeat.cli import sqlbeat
from celery_sqlbeat.config.database_url import DatabaseUrl, database_url
from celery_sqlbeat.config.policy import Policies
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import LineError, SettingError, SqlbeatError
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.store import open_store
from celery_sqlbeat.store.records import JobQuery
from celery_sqlbeat.transfer.jsonl import CheckedLine, read_lines
from tests.support.views import AdminView

RUN, CLAIM = "01a1ef76-184a-7000-8585-d1b91e91b01c", "5f2b3a5e0b1c4d6e8f90a1b2c3d4e5f6"
SECRET = "Xq7secretZ"

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
nasty = st.sampled_from(
    [
        "",
        "\0",
        "\ud800",
        "'; DROP TABLE Jobs; --",
        "%s %(x)s {0} :name ? @x",
        "x" * 5000,
        "../../etc/passwd",
        "NaN",
        "\u202e",
    ]
)


def nearly(good: Mapping[str, Any], odd: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a mapping that is right but for some of its values, and may have others."""
    fields = {key: st.just(value) | odd for key, value in good.items()}
    return st.builds(
        lambda right, more: {**more, **right},
        st.fixed_dictionaries({}, optional=fields),
        st.dictionaries(st.text(max_size=8), odd, max_size=2),
    )


HEADER = {"v": 1, "store": "a" * 32, "namespace": "default", "run": RUN, "claim": CLAIM, "fence": 3}


@given(anything | nearly(HEADER, anything | nasty), nearly({"id": RUN, "retries": 0}, anything))
@example(HEADER, {"id": RUN})
def test_a_header_is_read_refused_left_to_a_newer_worker_or_of_no_concern(raw: Any, request: dict[str, Any]) -> None:
    found = read(raw, request)
    assert isinstance(found, Header | Copied | Malformed | Newer)
    if isinstance(found, Copied):
        assert found.run != request.get("id")
    if isinstance(found, Header):
        assert (found.run, type(found.fence), found.celery_retries >= 0) == (request["id"], int, True)
        assert re.fullmatch(r"[0-9a-fA-F-]{32,36}", found.run)
    if isinstance(found, Malformed):
        assert CLAIM not in found.reason


PASSWORDS = st.text(alphabet=st.characters(codec="ascii", categories=("L", "N", "P", "S")), max_size=8)
SCHEMES = st.sampled_from(["mssql", "postgresql", "sqlite", "mysql", "redis", "mssql+odbc:", "", "POSTGRESQL", "http"])


@given(
    SCHEMES,
    PASSWORDS,
    PASSWORDS,
    st.text(max_size=12),
    st.sampled_from(["://u:", "://:", "://u;PWD=", ":PWD=", "://h/d?password="]),
)
def test_an_address_is_read_or_refused_and_shows_no_password(
    scheme: str, before: str, after: str, rest: str, joint: str
) -> None:
    text = f"{scheme}{joint}{before}{SECRET}{after}@host:5432/{rest}"
    try:
        shown = [*map(str, [database_url(text)]), repr(database_url(text)), database_url(text).masked()]
    except SettingError as error:
        shown = [str(error), repr(error), "".join(traceback.format_exception(error))]
        shown[2] = shown[2].replace(text, "")  # the line of this test's own source
    assert [each for each in shown if SECRET in each] == [] or not _is_secret(text)


def _is_secret(text: str) -> bool:
    """Whether the secret stands where a password stands, and not in a host's or a file's name."""
    try:
        url: DatabaseUrl = database_url(text)
    except SettingError:
        return True
    return SECRET not in f"{url.host} {url.name} {url.user}"


LINE = {
    "name": "nightly",
    "task": "shop.add",
    "schedule": "every 5s",
    "args": [1],
    "kwargs": {"a": 1},
    "options": {"queue": "q"},
    "enabled": True,
    "start": "2027-01-31T09:00:00Z",
    "max_retries": 2,
    "timezone": "Europe/Berlin",
}
RULES = Rules(Policies(), "UTC", 120.0, 3)
lines = st.one_of(
    st.text(max_size=60),
    nearly(LINE, json_like | nasty).map(lambda line: json.dumps(line)),
    nearly(LINE, json_like).map(lambda line: json.dumps(line)[:-3]),
    st.integers(1, 3000).map(lambda depth: '{"args": ' + "[" * depth),
)


@given(st.lists(lines, max_size=4))
@example([json.dumps(LINE)])
def test_each_line_of_a_file_is_a_job_or_an_error_that_names_it(texts: list[str]) -> None:
    found = list(read_lines(texts, RULES))
    assert all(isinstance(each, CheckedLine | LineError) for each in found)
    assert len(found) <= len(texts)
    for each in found:
        if isinstance(each, LineError):
            assert str(each.line) in str(each) and len(str(each)) < 1000


SETTINGS = ["database_url", "namespace", "poll_interval", "batch_size", "policies", "retry_base", "worker_memory"]


@given(st.dictionaries(st.sampled_from([f"sqlbeat_{name}" for name in SETTINGS]), anything | nasty, max_size=3))
def test_settings_are_read_or_refused_by_name(conf: dict[str, Any]) -> None:
    refusal = None
    try:
        read_settings(conf, {})
    except SettingError as error:
        refusal = error
    if refusal is not None:
        assert refusal.name.partition("[")[0] in {*conf, "sqlbeat_retry_base", "sqlbeat_lock_timeout"}
        assert len(str(refusal)) < 2000


Invoke = Callable[..., Result]


@pytest.fixture(scope="module")
def invoke(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Invoke]:
    """Run our commands on a database that has one job."""
    folder: Path = tmp_path_factory.mktemp("shell")
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(sqlbeat_database_url=f"sqlite:///{folder / 'beat.db'}", beat_schedule={})
    context = CLIContext(app=app, no_color=True, workdir=None)

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(sqlbeat, arguments, obj=context)

    assert call("init").exit_code == 0
    assert call("jobs", "put", "nightly", "--task", "shop.add", "--schedule", "every 1h").exit_code == 0
    yield call
    store = open_store(read_settings(app.conf, {}))
    assert "nightly" in AdminView(store).jobs(JobQuery(names=["nightly"]))  # nothing that was typed has deleted it
    store.close()


COMMANDS = [
    ("jobs", "list"),
    ("jobs", "show"),
    ("jobs", "put"),
    ("jobs", "pause"),
    ("jobs", "resume"),
    ("jobs", "run-now"),
    ("runs", "list"),
    ("runs", "show"),
    ("dead", "list"),
    ("dead", "replay"),
    ("explain",),
    ("status",),
    ("health",),
]
WORDS = st.one_of(
    nasty.filter(lambda text: "\0" not in text),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(
        ["nightly", "--json", "--yes", "--schedule", "--task", "--limit", "-1", "1e999", "{}", "[]", RUN, "every 5s"]
    ),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(command=st.sampled_from(COMMANDS), words=st.lists(WORDS, max_size=4))
def test_whatever_is_typed_is_done_or_refused_in_a_line(
    invoke: Invoke, command: tuple[str, ...], words: list[str]
) -> None:
    result = invoke(*command, *words)
    assert result.exit_code in (0, 1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit | SqlbeatError), "".join(
        traceback.format_exception(result.exception)
    )
    assert "Traceback" not in result.output
