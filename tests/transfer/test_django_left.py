"""A Django project that has switched without its periodic tasks.

They stop, and somebody says so.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.transfer.test_django import SETTINGS, SHOP

pytestmark = pytest.mark.slow

FILL = """
import shop, django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django_celery_beat.models import IntervalSchedule, PeriodicTask
every = IntervalSchedule.objects.create(every=10, period="seconds")
for name, fields in {
    "forgotten": {}, "off": {"enabled": False}, "static": {}, "once": {"one_off": True, "total_run_count": 1}
}.items():
    PeriodicTask.objects.create(name=name, task="shop.static", interval=every, **fields)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def environ(folder: Path) -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SQLBEAT_", "DJANGO_"))}
    return {**kept, "PYTHONPATH": f"{root}{os.pathsep}{folder}"}


def run(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        cwd=folder,
        env=environ(folder),
        capture_output=True,
        text=True,
        check=False,
    )


def starts(folder: Path, until: str) -> str:
    """Return the log of a beat, as soon as it says this."""
    log = folder / "beat.log"
    command = ["-m", "celery", "-A", "shop", "beat", "-l", "info", "--pidfile=", "-S", "celery_sqlbeat.Scheduler"]
    with log.open("w") as output:
        beat = subprocess.Popen(
            [sys.executable, "-W", "ignore", *command],
            cwd=folder,
            env=environ(folder),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        end = time.monotonic() + 60
        while until not in log.read_text():
            assert time.monotonic() < end and beat.poll() is None, log.read_text()
            time.sleep(0.05)
    finally:
        beat.terminate()
        beat.wait(30)
    return log.read_text()


def check(folder: Path) -> list[dict[str, Any]]:
    done = run(folder, "-m", "celery", "-A", "shop", "sqlbeat", "check", "--json", "--timeout", "0.3")
    assert done.stdout, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return [each for each in found if each["name"] == "django-celery-beat"]


def test_enabled_rows_that_are_not_in_the_table_are_named(folder: Path) -> None:
    filled = run(folder, "-c", FILL)
    assert filled.returncode == 0, filled.stderr
    log = starts(folder, "periodic tasks of django-celery-beat")
    assert "WARNING" in log and "1 enabled periodic tasks" in log and 'fire them: forgotten"' in log
    assert "jobs import --from django-celery-beat" in log
    (found,) = check(folder)
    assert found["level"] == "error" and found["says"].endswith("fire them: forgotten")
    moved = run(folder, "-m", "celery", "-A", "shop", "sqlbeat", "jobs", "import", "--from", "django-celery-beat")
    assert moved.returncode == 0, moved.stderr
    assert check(folder) == []


def test_a_project_without_those_tables_is_told_nothing(folder: Path) -> None:
    log = starts(folder, "cannot be read: no such table")
    assert "periodic tasks of django-celery-beat are not" not in log and "Traceback" not in log
    assert check(folder) == []
