"""docs/moving.md says what is so.

Its commands run in its order, and it names every source and field.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from celery_sqlbeat.cli.transfer import SOURCES
from celery_sqlbeat.config.policy import policies_from_setting
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.transfer.jsonl import FIELDS, CheckedLine, read_lines

PAGE = (Path(__file__).parents[2] / "docs/moving.md").read_text()

APP = """
from celery import Celery
app = Celery("shop", broker="memory://")
app.conf.beat_schedule = {"often": {"task": "shop.often", "schedule": 60.0}}
"""
STOCK = """
from celery.beat import PersistentScheduler
import app
scheduler = PersistentScheduler(app.app, schedule_filename="celerybeat-schedule")
scheduler.close()
"""


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def test_every_source_and_every_field_is_named() -> None:
    assert set(re.findall(r"^\| `([a-z_-]+)` \| .* \| jobs of the (?:code|table) \|$", PAGE, re.MULTILINE)) == set(
        SOURCES
    )
    fields = [name for row in re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert set(FIELDS) <= set(fields)


def test_the_lines_that_are_shown_are_jobs() -> None:
    (shown,) = blocks("json")
    found = list(read_lines(shown.splitlines(), Rules(policies_from_setting({}), "UTC", 120.0, 3)))
    assert len(found) == 3 and all(isinstance(one, CheckedLine) for one in found), found


def test_the_policies_that_are_shown_are_policies() -> None:
    (shown,) = blocks("python")
    name, _, value = shown.partition(" = ")
    assert name == "sqlbeat_policies"
    assert policies_from_setting(json.loads(value)).rules


@pytest.mark.slow
def test_the_commands_run_in_this_order(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    subprocess.run([sys.executable, "-c", STOCK], cwd=tmp_path, check=True, timeout=60)
    commands = ["celery -A app sqlbeat init", *re.findall(r"^\$ (.*)$", "".join(blocks("console")), re.MULTILINE)]
    assert len(commands) == 7
    for command in commands:
        command, _, file = command.partition(" > ")
        words = shlex.split(command)
        assert words[0] == "celery"
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        if file:
            (tmp_path / file).write_text(done.stdout)
    assert (tmp_path / "jobs.jsonl").exists()
