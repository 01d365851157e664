"""What becomes of slots that come due while a run goes on, by the policy of the job."""

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from celery_sqlbeat.checks.gather import read_slow
from celery_sqlbeat.config.policy import policies_from_setting
from celery_sqlbeat.model import StartedRun
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.lifecycle import Ending
from tests.support.world import NOON, World

SECOND = timedelta(seconds=1)
LONG = 3.3  # seconds that each run takes, with a slot every 2 s


def add(world: World, overlap: str | None, every: str = "every 2s", **policies: Any) -> str:
    if overlap is not None:
        policies["overlap"] = overlap
    return world.add(Schedule=every, Policies=json.dumps(policies) if policies else None)


def run_for(world: World, seconds: float = LONG, ending: Ending | None = None) -> StartedRun:
    run = world.running()
    world.later(seconds)
    assert world.finish(run, ending)
    return run


def history(world: World, name: str) -> list[tuple[float, str, str | None, int]]:
    """Each row as seconds from noon to its first slot, state, reason and number of slots."""
    return [
        ((_instant(row["scheduledfor"]) - NOON) / SECOND, row["state"], row["reason"], row["slotcount"])
        for row in world.runs(name)
    ]


def _instant(value: Any) -> datetime:
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    assert isinstance(found, datetime)
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def test_a_job_that_skips_keeps_to_its_crontab(world: World) -> None:
    name = add(world, "skip", "cron * * * * *")
    run_for(world, 150)
    assert world.claim().claims == []
    assert world.instant(name, "nextruntime") == NOON + 180 * SECOND
    assert history(world, name) == [(0, "success", None, 1), (60, "skipped", "overlap", 2)]


def test_a_slot_set_by_hand_is_run_although_a_run_went_on_at_that_time(world: World) -> None:
    name = add(world, "skip")
    run_for(world)
    world.claim()
    world.change(name, NextRunTime=NOON + SECOND)
    assert world.claim_one().slot.scheduled_for >= NOON + SECOND


def test_check_names_the_jobs_whose_runs_take_longer_than_their_period(world: World) -> None:
    rules = Rules(policies_from_setting({}), "UTC", 120.0, 3)
    slow = add(world, "skip", cadence="fixed_rate")
    for turn in range(2):
        run_for(world)
        world.claim()
        world.at(NOON + (turn + 1) * 4 * SECOND)
    world.change(slow, NextRunTime=NOON + 3600 * SECOND)
    add(world, None, "every 60s")
    run_for(world, 1.0)
    (found,) = read_slow(world.store, rules, 5.0)
    assert (found.job_name, found.overlap, found.is_chosen) == (slow, "skip", True)
    assert "about 3.3 s, longer than its period of 2.0 s" in str(found)
