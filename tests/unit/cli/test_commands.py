"""What the commands say about a wrong configuration.

One line, exit code 1, no traceback, no secret.
"""

import logging
from pathlib import Path
from typing import Any

import click
import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_sqlbeat.cli import Command, sqlbeat
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.errors import StoreError


def invoke(*arguments: str, **conf: Any) -> Result:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(conf)
    return CliRunner().invoke(sqlbeat, arguments, obj=CLIContext(app=app, no_color=True, workdir=None))


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SQLBEAT_DATABASE_URL", raising=False)


def assert_is_one_line_of_error(result: Result, hint: str) -> None:
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1
    assert hint in result.output


def test_a_bad_setting_is_one_line() -> None:
    assert_is_one_line_of_error(invoke("init", sqlbeat_batch_size=0), "sqlbeat_batch_size = 0: must be a whole number")


def test_a_bad_url_is_one_line_without_its_secret() -> None:
    result = invoke("init", sqlbeat_database_url="redis://u:s3kr1t@host/shop")
    assert_is_one_line_of_error(result, "its database is not a number")
    assert "s3kr1t" not in result.output


def test_a_bad_variable_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLBEAT_LOCK_TIMEOUT", "soon")
    assert_is_one_line_of_error(invoke("init"), "SQLBEAT_LOCK_TIMEOUT = 'soon'")


def test_a_configuration_that_cannot_be_loaded_is_one_line() -> None:
    app = Celery("shop", set_as_current=False)
    app.config_from_object("no_such_module_anywhere")
    result = CliRunner().invoke(sqlbeat, ["init"], obj=CLIContext(app=app, no_color=True, workdir=None))
    assert_is_one_line_of_error(result, "No module named")


def test_init_refuses_a_database_that_would_be_gone_at_once() -> None:
    assert_is_one_line_of_error(invoke("init", sqlbeat_database_url="sqlite://"), "in memory")


@pytest.mark.parametrize("url", ["redis://host/0", "memory://"])
def test_init_prints_no_script_where_there_are_no_tables(url: str) -> None:
    assert_is_one_line_of_error(invoke("init", "--sql", sqlbeat_database_url=url), "needs no script")


@pytest.mark.parametrize("url", ["redis://host/0", "memory://", "sqlite://"])
def test_init_creates_a_guard_in_lasting_sql_databases_alone(url: str) -> None:
    assert_is_one_line_of_error(invoke("init", "--guard", url), "is no SQL database that lasts")


@pytest.mark.parametrize(
    "url", ["sqlite:///shop.db", "postgresql://host/shop", "mysql://host/shop", "mssql://host/shop"]
)
def test_init_prints_the_script_of_a_guard_and_connects_to_nothing(url: str) -> None:
    result = invoke("init", "--guard", url, "--sql")
    assert result.exit_code == 0 and "SqlbeatGuard (" in result.output


@pytest.mark.parametrize("arguments", [["init"], ["status"], ["jobs", "list"], ["runs", "list"], ["dead", "list"]])
def test_no_command_asks_a_store_in_memory(arguments: list[str]) -> None:
    assert_is_one_line_of_error(invoke(*arguments, sqlbeat_database_url="memory://"), "memory")


@pytest.mark.parametrize(
    "arguments", [["nosuch"], ["init", "--nosuch"], ["init", "nosuch"], ["init", "--guard", "sqlite:///s", "--json"]]
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    assert invoke(*arguments).exit_code == 2


@pytest.mark.parametrize("error", [StoreError("first\nsecond"), OSError("disk full"), PermissionError()])
def test_an_error_of_a_command_is_one_line_whatever_it_says(error: Exception) -> None:
    @click.command(cls=Command)
    def failing() -> None:
        raise error

    result = CliRunner().invoke(failing)
    assert result.exit_code == 1
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("path", ["nosuch/sqlbeat.db", "folder"])
def test_a_database_that_is_not_there_is_named_with_what_helps(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "statement_timeout", 0.02)  # seconds of waiting for a disk that may come back
    (tmp_path / "folder").mkdir()
    url = f"sqlite:///{tmp_path / path}"
    result = invoke("init", sqlbeat_database_url=url)
    assert result.exit_code == 1
    *_, error = result.output.splitlines()
    assert error.startswith("Error: ")
    assert error.endswith(f"its folder is there and may be written, or correct sqlbeat_database_url, which is {url}")


def test_what_a_library_logs_beside_its_error_is_not_shown() -> None:
    @click.command(cls=Command)
    def failing() -> None:
        root, handlers = logging.getLogger(), logging.getLogger().handlers[:]
        root.handlers.clear()  # as where nobody has set up logging
        try:
            logging.getLogger("azure.identity._credentials.chained").warning("a dozen lines")
        finally:
            root.handlers.extend(handlers)

    assert CliRunner().invoke(failing).output == ""


def test_options_that_an_app_adds_to_every_command_are_taken() -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    option = click.Option(["--environment"])
    sqlbeat.params.append(option)
    try:
        arguments = ["--environment", "test", "init", "--help"]
        result = CliRunner().invoke(sqlbeat, arguments, obj=CLIContext(app=app, no_color=True, workdir=None))
    finally:
        sqlbeat.params.remove(option)
    assert result.exit_code == 0
