"""The example project.

Its settings for each place it runs on, and a schedule that stock beat takes as well.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from celery_sqlbeat.cli.init import project_root
from example_project.demo import surroundings

ROOT = Path(__file__).parents[2]
SHOW = (
    "import os, example_project\n"
    "from celery_sqlbeat.config.settings import read_settings\n"
    "conf = example_project.app.conf\n"
    "print(read_settings(conf, os.environ).database_url, conf.broker_url.partition(':')[0], len(conf.beat_schedule))"
)
IN_STOCK_BEAT = (
    "import example_project\n"
    "from celery.beat import Scheduler\n"
    "stock = Scheduler(example_project.app, schedule={}, lazy=True)\n"
    "stock.merge_inplace(example_project.app.conf.beat_schedule)\n"
    "print(*stock.schedule)"
)


def shown(code: str = SHOW, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**surroundings({"PATH": "/usr/bin:/bin"}), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("on", "database", "broker"),
    [
        ("", "sqlite:///sqlbeat.db", "folder"),
        ("embedded", "sqlite:///sqlbeat.db", "folder"),
        ("postgresql", "postgresql://", "redis"),
        ("sqlserver", "mssql://", "amqp"),
    ],
)
def test_one_variable_chooses_the_database_and_the_broker(on: str, database: str, broker: str) -> None:
    done = shown(**({"EXAMPLE_ON": on} if on else {}))
    assert done.returncode == 0, done.stderr
    url, scheme, entries = done.stdout.split()
    assert url.startswith(database)
    assert (scheme, entries) == (broker, "5")


def test_another_value_is_refused_with_what_is_allowed() -> None:
    assert "must be embedded, postgresql or sqlserver" in shown(EXAMPLE_ON="oracle").stderr


def test_the_schedule_is_one_of_stock_beat() -> None:
    done = shown(IN_STOCK_BEAT)
    entries = {"ping-shops", "count-orders", "build-report", "fetch-rates", "close-books"}
    assert set(done.stdout.split()) == entries, done.stderr


def test_the_demonstration_inherits_no_setting_of_another_app() -> None:
    given = surroundings({"SQLBEAT_DATABASE_URL": "sqlite:///mine.db", "CELERY_BROKER_URL": "x", "HOME": "/home/me"})
    assert "SQLBEAT_DATABASE_URL" not in given
    assert "CELERY_BROKER_URL" not in given
    assert given["HOME"] == "/home/me"


def test_the_project_is_found() -> None:
    assert (project_root() / "example_project" / "settings.py").is_file()
