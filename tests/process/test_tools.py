"""Tools that watch over beat see what they see of stock beat.

Sentry's monitors, and entries added at `beat_init`.
"""

import json
from typing import Any

import pytest

from tests.process.conftest import MakeShop
from tests.support.beats import assert_clean, wait_for
from tests.support.brokers import Arrived

pytestmark = pytest.mark.slow

# Sentry's own SDK; its transport writes to a file what it would send.
_SENTRY = """\
import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport


class Kept(Transport):
    def capture_envelope(self, envelope):
        with open("envelopes", "a") as file:
            for item in envelope.items:
                if item.type == "check_in":
                    file.write(item.payload.get_bytes().decode() + "\\n")
                elif item.type == "event":
                    with open("events", "a") as events:
                        events.write(item.payload.get_bytes().decode() + "\\n")


sentry_sdk.init(
    "http://public@127.0.0.1:1/1", transport=Kept, integrations=[CeleryIntegration(monitor_beat_tasks=True)]
)
"""


def test_sentry_monitors_jobs_by_their_schedules(make_shop: MakeShop) -> None:
    shop = make_shop("postgresql", "redis")
    soon = shop.now()
    shop.write({"every-ten": {"task": "shop.add", "schedule": 600}}, extra=_SENTRY, timezone="Europe/Berlin")
    shop.add("in-the-table", schedule="cron 30 2 * * mon-fri", time_zone="America/New_York", at=soon)
    shop.statement("UPDATE Jobs SET NextRunTime = NULL WHERE JobName = 'every-ten'")
    beat = shop.start()
    beat.says("brought its beat_schedule")
    shop.statement("UPDATE Jobs SET NextRunTime = clock_timestamp() WHERE JobName = 'every-ten'")
    wait_for(lambda: len(shop.dispatched()) == 2, 30, shop.logs)
    beat.stop()
    assert_clean(beat)
    lines = (shop.folder / "envelopes").read_text().splitlines()
    seen = {each["monitor_slug"]: each for each in map(json.loads, lines)}
    assert seen["every-ten"]["monitor_config"] == {
        "schedule": {"type": "interval", "value": 10, "unit": "minute"},
        "timezone": "Europe/Berlin",
    }
    assert seen["in-the-table"]["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "30 2 * * mon-fri"},
        "timezone": "America/New_York",
    }
    assert {each["status"] for each in seen.values()} == {"in_progress"}
    sent = {message.headers["sentry-monitor-slug"]: message.headers for message in shop.place.take()}
    assert {name: headers["sentry-monitor-check-in-id"] for name, headers in sent.items()} == {
        name: each["check_in_id"] for name, each in seen.items()
    }
    assert all(headers["sqlbeat"]["run"] == headers["id"] for headers in sent.values())


# As Cronitor's package does it: each entry again, as a signature that has headers.
_AT_BEAT_INIT = """\
from celery.signals import beat_init


@beat_init.connect
def add_headers(sender, **_):
    for name, entry in sender.scheduler.schedule.items():
        signature = app.tasks[entry.task].s().set(headers={"monitor": name})
        app.add_periodic_task(entry.schedule, signature, entry.args, entry.kwargs, name=entry.name)
    app.add_periodic_task(1.0, app.tasks["shop.add"].s(), name="one-more")
"""


def test_entries_that_a_tool_replaces_at_beat_init_are_those_that_fire(make_shop: MakeShop) -> None:
    shop = make_shop("sqlite", "redis")
    shop.write({"often": {"task": "shop.add", "schedule": 1, "args": [1]}}, extra=_AT_BEAT_INIT)
    beat = shop.start()
    arrived: list[Arrived] = []

    def both() -> bool:
        arrived.extend(shop.place.take())
        return {"often", "one-more"} <= {message.headers["periodic_task_name"] for message in arrived}

    wait_for(both, 30, shop.logs)
    beat.stop()
    assert_clean(beat)
    monitors: dict[str, Any] = {each.headers["periodic_task_name"]: each.headers.get("monitor") for each in arrived}
    assert monitors == {"often": "often", "one-more": None}
