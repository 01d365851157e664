"""The jobs of a simulated world, and an account of their slots that shares no code with ours."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from tests.simulation.broker import BROKEN, VANILLA

_BERLIN = ZoneInfo("Europe/Berlin")
_SPRING = datetime(2027, 3, 28, 1, tzinfo=timezone.utc)  # the clocks of Berlin go forward
_AUTUMN = datetime(2027, 10, 31, 1, tzinfo=timezone.utc)  # and back
STARTS = (
    datetime(2027, 5, 4, 9, 13, 7, tzinfo=timezone.utc),
    _SPRING - timedelta(minutes=17),
    _AUTUMN - timedelta(minutes=47),
)
STRATEGY_TASK = "app.batch"
_NIGHTLY = "cron 30 2 * * *"

Next = Callable[[datetime], datetime]


class Spec(NamedTuple):
    """A job as it is defined now, and how its task behaves."""

    name: str
    schedule: str
    zone: str | None
    policies: dict[str, Any]
    options: dict[str, Any]
    interval: float | None
    """Of an interval job, in seconds."""
    next_slot: Next | None
    """Of a job on a grid: the first slot after an instant."""
    shortest: float
    longest: float
    fails: float
    retries: float
    hangs: float = 0.0
    """How often a body never ends by itself."""
    unstored: float = 0.0
    """How often the result of a body that returned cannot be stored."""
    own_strategy: bool = False
    """Whether its task has a strategy of its own, which takes its messages over."""

    @property
    def cadence(self) -> str:
        """How one slot follows another."""
        return str(self.policies.get("cadence", "from_start"))

    @property
    def misfire(self) -> str:
        """What becomes of missed slots."""
        return str(self.policies.get("misfire", "coalesce"))

    @property
    def overlap(self) -> str:
        """What becomes of slots that come due while a run goes on."""
        return str(self.policies.get("overlap", "queue"))

    @property
    def columns(self) -> dict[str, Any]:
        """The row."""
        return {
            "JobName": self.name,
            "TaskName": STRATEGY_TASK if self.own_strategy else "app.task",
            "Schedule": self.schedule,
            "TimeZone": self.zone,
            "Policies": json.dumps(self.policies) if self.policies else None,
            "Options": json.dumps(self.options) if self.options else None,
        }


def _every_minutes(minutes: int) -> Next:
    """Of `cron */n * * * *`: through both passes of a repeated hour, and not in a skipped one."""

    def following(after: datetime) -> datetime:
        minute = after.replace(second=0, microsecond=0)
        return minute + timedelta(minutes=minutes - minute.minute % minutes)

    return following


def _at_minute(minute: int) -> Next:
    """Of `cron m * * * *`."""

    def following(after: datetime) -> datetime:
        found = after.replace(minute=minute, second=0, microsecond=0)
        return found if found > after else found + timedelta(hours=1)

    return following


def _nightly(after: datetime) -> datetime:
    """Of `cron 30 2 * * *` in Berlin: once a night, whatever the clocks do."""
    day = after.astimezone(_BERLIN).date()
    while True:
        wall = datetime(day.year, day.month, day.day, 2, 30, tzinfo=_BERLIN, fold=0)
        found = wall.astimezone(timezone.utc)
        if found.astimezone(_BERLIN).hour != 2:  # skipped: at the end of the gap
            found = _SPRING
        if found > after:
            return found
        day += timedelta(days=1)


def schedule(rng: Random) -> tuple[str, str | None, float | None, Next | None]:
    """Any schedule: its text, its zone, its interval, its grid."""
    kind = rng.random()
    if kind < 0.55:
        seconds = rng.choice([5, 7, 10, 20, 30, 45, 60])
        return f"every {seconds}s", None, float(seconds), None
    if kind < 0.7:
        return "cron * * * * *", rng.choice([None, "Europe/Berlin"]), None, _every_minutes(1)
    if kind < 0.85:
        return "cron */5 * * * *", "Europe/Berlin", None, _every_minutes(5)
    if kind < 0.93:
        minute = rng.randrange(60)
        return f"cron {minute} * * * *", "America/New_York", None, _at_minute(minute)
    return _NIGHTLY, "Europe/Berlin", None, _nightly


def spec(rng: Random, name: str, lease: float, queue: str | None = None) -> Spec:
    """Any job; on this queue, if one is given."""
    text, zone, interval, next_slot = schedule(rng)
    policies: dict[str, Any] = {}
    if interval is not None:
        policies["cadence"] = rng.choice(["from_start", "from_start", "fixed_rate", "fixed_delay"])
    if rng.random() < 0.5:
        policies["overlap"] = rng.choice(["allow", "allow", "skip", "replace", "queue"])
    policies["misfire"] = rng.choice(["coalesce", "coalesce", "skip", "catch_up"])
    if policies["misfire"] == "skip":
        policies["misfire_grace"] = rng.choice([5, 20])
    if policies["misfire"] == "catch_up":
        policies["catch_up_limit"] = rng.choice([1, 3])
    if rng.random() < 0.5:
        policies["max_retries"] = rng.choice([0, 1, 2])
    if rng.random() < 0.2:
        policies["lock_timeout"] = 2 * lease
    options: dict[str, Any] = {}
    if rng.random() < 0.1:
        options["queue"] = VANILLA
    if queue is not None:
        options["queue"] = queue
    if rng.random() < 0.15:
        options["countdown"] = rng.choice([1, 8])
    if rng.random() < 0.07:
        options["serializer"] = BROKEN
    hangs = 0.0
    own_strategy = rng.random() < 0.1
    if not own_strategy and rng.random() < 0.15:
        policies["max_runtime"] = rng.choice([0.5, lease, 3 * lease])
        hangs = 0.3
    return Spec(
        name,
        text,
        zone,
        policies,
        options,
        interval,
        next_slot,
        *rng.choice([(0.01, 0.5), (0.1, 5.0), (1.0, 1.5 * lease), (lease, 4 * lease)]),
        fails=rng.choice([0.0, 0.1, 0.6]),
        retries=rng.choice([0.0, 0.0, 0.3]),
        hangs=hangs,
        unstored=rng.choice([0.0, 0.0, 0.3]),
        own_strategy=own_strategy,
    )
