"""A kind of schedule that the settings add is the same to beats, the commands and `check`."""

import pytest

from tests.process.conftest import MakeShop
from tests.process.test_command_line import QUICK, findings, run
from tests.process.test_custom_schedules import fires
from tests.support.beats import PATIENCE, wait_for

pytestmark = pytest.mark.slow

KINDS = '''
"""Kinds of schedule of this shop."""

from datetime import datetime, timedelta, timezone


class Seconds:
    """Fires each second multiple of so many seconds."""

    def __init__(self, seconds):
        self.step = timedelta(seconds=2 * seconds)

    def next_after(self, instant, zone):
        start = datetime(2000, 1, 1, tzinfo=timezone.utc)
        return start + ((instant - start) // self.step + 1) * self.step


class Wrong:
    """Answers with the past."""

    def next_after(self, instant, zone):
        return instant - timedelta(days=1)


def twice(text):
    return Wrong() if text == "wrong" else Seconds(float(text))
'''


@pytest.mark.parametrize(("database", "broker"), [("postgresql", "redis"), ("sqlite", "rabbitmq")])
def test_a_kind_of_the_shop_fires_as_the_commands_say(make_shop: MakeShop, database: str, broker: str) -> None:
    shop = make_shop(database, broker)
    (shop.folder / "kinds.py").write_text(KINDS)
    in_code = {"in-code": {"task": "shop.add", "schedule": "twice 0.5"}}
    shop.write(in_code, sqlbeat_schedules={"twice": "kinds.twice"})
    beat = shop.start()
    shop.add("by-hand", schedule="Twice  1")
    shop.add("wrong", schedule="twice wrong")
    done = run(shop, "jobs", "put", "put", "--task", "shop.add", "--schedule", "twice 1", "--json")
    assert done.returncode == 0, done.stderr
    done = run(shop, "jobs", "put", "bad", "--task", "shop.add", "--schedule", "twice x")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "Schedule = 'twice x'" in done.stderr and "could not convert string" in done.stderr, done.stderr
    wait_for(lambda: all(fires(shop, name) > 2 for name in ("in-code", "by-hand", "put")), PATIENCE, shop.logs)
    beat.says("that is later, or None")
    for each in shop.runs():
        if each.job_name in ("by-hand", "put"):
            assert each.scheduled_for.microsecond == 0 and each.scheduled_for.second % 2 == 0, each
    found = findings(shop, *QUICK)["quarantine"]["says"]
    assert "job wrong is set aside: Schedule = 'twice wrong'" in found and "by-hand" not in found
    beat.stop()


def test_without_the_function_of_a_kind_no_beat_starts_and_check_says_so(make_shop: MakeShop) -> None:
    shop = make_shop("sqlite", "redis")
    shop.write({"each-second": {"task": "shop.add", "schedule": 1.0}}, sqlbeat_schedules={"twice": "kinds.twice"})
    reason = "sqlbeat_schedules = 'twice': the schedule kind kinds.twice cannot be loaded"
    beat = shop.start()
    assert beat.wait() != 0
    assert reason in beat.log and "Traceback" not in beat.log
    done = run(shop, "check", *QUICK)
    assert done.returncode == 1 and reason in " ".join(done.stdout.split()), done.stdout
