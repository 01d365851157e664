"""The move from django-celery-beat.

A real Django project with its own scheduler, taken over on the command line.
"""

import json
import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SETTINGS = """
import os
SECRET_KEY = "throw-away"
INSTALLED_APPS = ["django.contrib.contenttypes", "django_celery_beat"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.sqlite3"}}
USE_TZ = DJANGO_CELERY_BEAT_TZ_AWARE = os.environ.get("WITHOUT_ZONES") is None
TIME_ZONE = "Europe/Berlin"
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
CELERY_SQLBEAT_DATABASE_URL = "sqlite:///jobs.db"
CELERY_TIMEZONE = "UTC"
CELERY_RESULT_EXPIRES = None
CELERY_BEAT_SCHEDULE = {"static": {"task": "shop.static", "schedule": 600.0}}
"""

SHOP = """
import os
from celery import Celery
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
app = Celery("shop", broker="memory://")
app.config_from_object("django.conf:settings", namespace="CELERY")
"""

PLAIN_SHOP = """
from celery import Celery
app = Celery("shop", broker="memory://")
app.conf.sqlbeat_database_url = "sqlite:///jobs.db"
"""

# Fills Django's tables, lets django-celery-beat read them, and prints when it would fire each task
# next.
FILL = """
import json
from datetime import datetime, timedelta, timezone
import shop, django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.conf import settings
from django_celery_beat.models import (
    ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule,
)
from django_celery_beat.schedulers import DatabaseScheduler

now = datetime.now(timezone.utc)
def at(instant):
    return instant if settings.USE_TZ else instant.replace(tzinfo=None)

minutes = IntervalSchedule.objects.create(every=5, period="minutes")
hours = IntervalSchedule.objects.create(every=2, period="hours")
micro = IntervalSchedule.objects.create(every=5, period="microseconds")
nightly = CrontabSchedule.objects.create(minute="30", hour="3", timezone="America/New_York")
strange = CrontabSchedule.objects.create(minute="*/15", hour="9-17", day_of_week="mon-fri", timezone="UTC")
sun = SolarSchedule.objects.create(event="sunset", latitude="51.5", longitude="-0.12")
def clock(instant):
    return ClockedSchedule.objects.create(clocked_time=at(instant))

def make(name, **fields):
    return PeriodicTask.objects.create(name=name, task="shop." + name.replace(" ", "_"), **fields)

make("often", interval=minutes, args='[1, "\\u00fc"]', kwargs='{"k": null}', queue="q", priority=3, headers='{"h": 1}')
make("nightly", crontab=nightly, expire_seconds=600, description="why")
make("weekdays", crontab=strange)
make("sun", solar=sun)
make("later", clocked=clock(now + timedelta(days=3)), one_off=True)
make("over", clocked=clock(now - timedelta(days=3)), one_off=True, enabled=False)
make("off", interval=hours, enabled=False)
make("starts", interval=hours, start_time=at(now + timedelta(hours=7)))
make("ends", interval=hours, expires=at(now + timedelta(days=30)))
make("ended", interval=hours, expires=at(now - timedelta(days=30)))
make("single", interval=hours, one_off=True)
make("too often", interval=micro)
make("no json", interval=hours, args="[1,")

# Crontabs ran just now: a minute ago, their next slot would have passed at some times of the day.
ran = {"often": timedelta(minutes=1), "nightly": timedelta(0), "weekdays": timedelta(0)}
late = make("late", interval=minutes)
ran["late"] = timedelta(days=2)
for name, ago in ran.items():
    PeriodicTask.objects.filter(name=name).update(
        last_run_at=at(now - ago), total_run_count=1
    )
make("single done", interval=hours, one_off=True)
PeriodicTask.objects.filter(name="single done").update(total_run_count=1)
scheduler = DatabaseScheduler(shop.app)
due = {}
over = ["no json", "too often", "single done", "ended"]
for task in PeriodicTask.objects.filter(enabled=True).exclude(name__in=over):
    entry = scheduler.Entry(task, app=shop.app)
    is_due, seconds = entry.is_due()
    if not is_due:
        due[task.name] = (datetime.now(timezone.utc) + timedelta(seconds=seconds)).isoformat()
scheduler.sync()
print(json.dumps({"due": due, "now": now.isoformat(), "ran": {k: (now - v).isoformat() for k, v in ran.items()}}))
"""


class Project:
    """A Django project with django-celery-beat."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.folder = folder
        self.environ = {**os.environ, "PYTHONPATH": str(folder), "DJANGO_SETTINGS_MODULE": "settings", **environ}
        self.environ.pop("SQLBEAT_DATABASE_URL", None)
        (folder / "settings.py").write_text(SETTINGS)
        (folder / "shop.py").write_text(SHOP)

    def run(self, *command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *command], cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def sqlbeat(self, *arguments: str, code: int = 0) -> str:
        return self.run("-m", "celery", "-A", "shop", "sqlbeat", *arguments, code=code).stdout

    def take_over(self, *arguments: str) -> dict[str, dict[str, Any]]:
        found = json.loads(self.sqlbeat("jobs", "import", "--from", "django-celery-beat", "--json", *arguments))
        return {job["name"]: job for job in found["jobs"]}

    def jobs(self) -> dict[str, dict[str, Any]]:
        return {job["name"]: job for job in json.loads(self.sqlbeat("jobs", "list", "--json"))}


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


@pytest.mark.parametrize("environ", [{}, {"WITHOUT_ZONES": "1"}], ids=["with time zones", "without time zones"])
def test_a_django_project_moves_with_all_its_tasks(tmp_path: Path, environ: dict[str, str]) -> None:
    project = Project(tmp_path, **environ)
    facts = json.loads(project.run("-c", FILL).stdout)
    now = instant(facts["now"])
    project.sqlbeat("init")

    planned = project.take_over("--dry-run")
    assert project.jobs() == {}
    done = project.take_over()
    assert {name: job["action"] for name, job in planned.items()} == {name: job["action"] for name, job in done.items()}

    left = {name: "; ".join(job["remarks"]) for name, job in done.items() if job["action"] == "left"}
    assert left.keys() == {"over", "single done", "too often", "no json"}
    assert "its instant has passed" in left["over"]
    assert "it was to run once, and has run" in left["single done"]
    assert "0.001" in left["too often"]
    assert "not JSON" in left["no json"]
    assert done["static"]["action"] == "code"
    assert "its description is lost" in done["nightly"]["remarks"]

    jobs = project.jobs()
    assert jobs.keys() == done.keys() - left.keys()
    often = jobs["often"]
    assert (often["task"], often["schedule"], often["args"], often["kwargs"]) == (
        "shop.often",
        "every 5m",
        [1, "ü"],
        {"k": None},
    )
    assert often["options"] == {"queue": "q", "priority": 3, "headers": {"h": 1}}
    nightly = jobs["nightly"]
    zone = None if environ else "America/New_York"  # where the project has no zones, crontabs count in the app's
    assert (nightly["schedule"], nightly["timezone"]) == ("cron 30 3 * * *", zone)
    assert nightly["options"] == {"expires": 600}
    assert jobs["weekdays"]["schedule"] == "cron */15 9-17 * * mon-fri"
    assert jobs["sun"]["schedule"] == "solar sunset 51.5 -0.12"
    assert jobs["later"]["schedule"].startswith("once ")
    assert (jobs["off"]["enabled"], jobs["off"]["disabled_reason"]) == (False, "disabled in django-celery-beat")
    assert jobs["ended"]["enabled"] is False and "expired" in jobs["ended"]["disabled_reason"]
    assert jobs["ends"]["options"].keys() == {"expires"}
    assert jobs["single"]["schedule"].startswith("once ")

    # Each fires next when the old scheduler would have fired it.
    for name, at in facts["due"].items():
        assert abs(instant(jobs[name]["next_run_time"]) - instant(at)) < timedelta(seconds=10), name
    assert instant(jobs["late"]["next_run_time"]) == now - timedelta(days=2) + timedelta(minutes=5)
    assert facts["due"].keys() >= {"often", "nightly", "weekdays", "later", "starts", "ends", "single", "static"}
    for name, at in facts["ran"].items():
        assert instant(jobs[name]["last_run_time"]) == instant(at), name

    again = project.take_over()
    assert {job["action"] for job in again.values()} == {"same", "left"}


def test_a_project_whose_settings_are_missing_is_one_line(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.sqlbeat("init")
    del project.environ["DJANGO_SETTINGS_MODULE"]
    (tmp_path / "shop.py").write_text(PLAIN_SHOP)
    done = project.run(
        "-m", "celery", "-A", "shop", "sqlbeat", "jobs", "import", "--from", "django-celery-beat", code=1
    )
    assert done.stderr.splitlines()[-1].startswith("Error: DJANGO_SETTINGS_MODULE is not set")
    assert "Traceback" not in done.stderr


def test_a_project_without_its_tables_is_one_line(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.sqlbeat("init")
    done = project.run(
        "-m", "celery", "-A", "shop", "sqlbeat", "jobs", "import", "--from", "django-celery-beat", code=1
    )
    assert "Django's database cannot be read" in done.stderr
    assert "Traceback" not in done.stderr
