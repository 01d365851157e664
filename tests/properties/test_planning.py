"""Whatever people write into a row, a batch is planned.

Each row becomes one thing, and none stops another.
"""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqlbeat.config.policy import Policies
from celery_sqlbeat.model import LONGEST_QUARANTINE, Attempt, DueBatch, DueJob, JobRecord
from celery_sqlbeat.model.definition import Rules
from celery_sqlbeat.model.one_offs import ONCE, ONE_OFF
from celery_sqlbeat.planning import Planner

NOW = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
RULES = Rules(Policies(), "UTC", 120.0, 3)

_DAY = timedelta(1)  # from the ends of the calendar, so that no zone leaves it
instants = st.datetimes(datetime.min + _DAY, datetime.max - _DAY, timezones=st.just(timezone.utc))  # noqa: DTZ901
odd = st.one_of(
    st.none(), st.text(max_size=20), st.integers(), st.floats(), st.binary(max_size=5), st.booleans(), instants
)
schedules = st.sampled_from(
    ["every 60s", "every 1d relative", "cron */5 * * * *", "cron 0 9 * * mon", "once 2027-03-01T11:00:00Z", None]
)
zones = st.sampled_from([None, "UTC", "Europe/London", "Australia/Lord_Howe", "Mars/Olympus", ""])
texts = st.sampled_from(
    [None, "[]", "{}", "[1]", '{"a": 1}', "nonsense", "[[[[", "NaN", '"x"', "\ud800", "\0", "fernet:x"]
)
policies = st.sampled_from(
    [
        None,
        "{}",
        '{"misfire": "skip", "misfire_grace": 1}',
        '{"misfire": "catch_up", "catch_up_limit": 3}',
        '{"cadence": "fixed_rate", "jitter": 30}',
        '{"cadence": "fixed_delay", "overlap": "allow"}',
        '{"overlap": "skip"}',
        '{"overlap": "replace", "cadence": "fixed_rate"}',
        '{"overlap": "allow", "max_parallel": 2}',
        '{"jitter": "much"}',
        "[]",
    ]
)
past = st.one_of(st.timedeltas(timedelta(0), timedelta(days=40_000)).map(lambda ago: NOW - ago), odd)
states = st.sampled_from(["scheduled", "claimed", "running", "retry", "success", "dlq"])


@st.composite
def due_jobs(draw: st.DrawFn, number: int) -> DueJob:
    return DueJob(
        job_id=f"id-{number}",
        job_name=f"job-{number}",
        task_name=draw(st.one_of(st.just("app.task"), odd)),
        schedule=draw(st.one_of(schedules, odd)),
        interval_minutes=draw(st.one_of(st.just(10), odd)),
        time_zone=draw(st.one_of(zones, odd)),
        args=draw(st.one_of(texts, odd)),
        kwargs=draw(st.one_of(texts, odd)),
        options=draw(st.one_of(texts, odd)),
        policies=draw(st.one_of(policies, odd)),
        lock_timeout_minutes=draw(st.one_of(st.none(), odd)),
        code_key=None,
        next_run_time=draw(past),
        last_run_time=draw(odd),
        retry_at=draw(odd),
        fence=draw(st.integers(0, 5)),
        left_run_id=draw(st.one_of(st.none(), st.just(f"left-{number}"))),
        run_id=draw(st.one_of(st.none(), st.just(f"run-{number}"))),
        planned_at=draw(st.one_of(past, odd)),
        ran_until=draw(st.one_of(st.none(), past, odd)),
        extra=draw(st.integers(0, 1)),
        now=NOW,
    )


def attempt(job_id: str, run_id: str, state: str, at: datetime, advances: int) -> Attempt:
    return Attempt(run_id, job_id, "schedule", at, 1, state, 0, 0, advances)


@given(st.data())
def test_each_row_becomes_exactly_one_thing(data: st.DataObject) -> None:
    jobs = [data.draw(due_jobs(number)) for number in range(3)]
    attempts: dict[str, Attempt] = {}
    for job in jobs:
        for run_id in (job.run_id, job.left_run_id):
            if run_id is not None and data.draw(st.booleans()):
                facts: Any = (data.draw(states), data.draw(instants), data.draw(st.integers(0, 1)))
                attempts[run_id] = attempt(job.job_id, run_id, *facts)
    plan = Planner(RULES)(DueBatch(jobs, attempts))
    done = [claim.job_id for claim in plan.claims]
    done += [advance.job_id for advance in plan.advances]
    done += [quarantine.job_id for quarantine in plan.quarantines]
    done += [job.job_id for job in plan.locked]
    assert sorted(done) == [job.job_id for job in jobs]
    for claim in plan.claims:
        slot = claim.slot
        assert slot.planned_at is None or slot.planned_at > slot.scheduled_for
        assert claim.fence > 0 and claim.lease_seconds > 0
    for advance in plan.advances:
        assert advance.next_slot is None or advance.next_slot > NOW
    for gap in plan.gaps:
        assert gap.first <= gap.last <= NOW and gap.slot_count >= 1
    assert all(0 < len(quarantine.reason) <= LONGEST_QUARANTINE for quarantine in plan.quarantines)


@given(st.data())
def test_each_loose_row_is_mended_or_set_aside(data: st.DataObject) -> None:
    job = data.draw(due_jobs(1))
    facts = job._asdict()
    for name in ("left_run_id", "planned_at", "ran_until", "extra", "open_runs"):
        del facts[name]
    facts |= dict.fromkeys(JobRecord._fields - facts.keys() - {"quarantine", "start_at", "delete_requested"})
    row = JobRecord(**facts, quarantine=None, start_at=data.draw(odd), delete_requested=0)
    mends, quarantines = Planner(RULES).repairs([row])
    assert len(mends) + len(quarantines) == 1
    for mend in mends:
        assert mend.next_run_time is not None


@pytest.mark.parametrize(
    ("state", "number"), [("scheduled", 1), ("claimed", 1), ("retry", 2), ("running", 2)], ids=lambda value: str(value)
)
@pytest.mark.parametrize("overlap", ["queue", "allow", "replace"])
def test_a_one_off_is_taken_up_again_under_its_own_run_id(state: str, number: int, overlap: str) -> None:
    """What its next message carries as the id of the task is what the first one did."""
    job = DueJob(
        *("id", "id", "app.task", ONCE, None, None, None, None, None, f'{{"overlap": "{overlap}"}}', None, None),
        *(None, None, NOW, 4, "run" if state in ("claimed", "running") else None, "run", None, None, 0, NOW),
    )
    prior = attempt(job.job_id, "run", state, NOW, 1)._replace(kind=ONE_OFF)
    plan = Planner(RULES)(DueBatch([job], {"run": prior}))
    assert not plan.left and not plan.quarantines and not plan.advances
    (claim,) = plan.claims
    assert (claim.run_id, claim.slot.kind, claim.slot.attempt) == ("run", ONE_OFF, number)
    assert claim.slot.same_run and claim.exclusive and claim.slot.advances
    assert (claim.slot.planned_at, claim.slot.delay_seconds, claim.replace_at, claim.max_parallel) == (None,) * 4
