"""Whatever happens to a job, each of its slots is fired or recorded exactly once, and time goes forward."""
# ruff: noqa: DTZ001  # hypothesis takes its bounds without a zone

from datetime import datetime, timedelta, timezone

from hypothesis import given, settings
from hypothesis import strategies as st

from celery_sqlbeat.schedule import (
    Cron,
    Every,
    Fire,
    Misfire,
    Skip,
    Timeline,
    count_between,
    next_after,
    parse,
    zone_named,
)

UTC = timezone.utc
TICK = timedelta(microseconds=1)
ZONE = zone_named("America/New_York")
KEY = "job"

INSTANTS = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC))
CRONTABS = st.sampled_from(["*/5 * * * *", "30 1,2 * * *", "0 9 * * mon-fri", "*/20 1 * * *", "0 0 1 * *"])
GRIDS = CRONTABS.map(lambda text: parse(f"cron {text}"))
JITTERS = st.sampled_from([0.0, 0.5, 30.0, 7200.0])
POLICIES = st.sampled_from(["coalesce", "skip", "catch_up"])
LATE = st.timedeltas(timedelta(), timedelta(minutes=3)) | st.timedeltas(timedelta(), timedelta(days=60))


@st.composite
def misfires(draw: st.DrawFn) -> Misfire:
    return Misfire(
        draw(POLICIES),
        draw(st.none() | st.floats(0, 7200)),
        draw(st.integers(1, 30)),
        draw(st.none() | st.integers(1, 7200)),
    )


@settings(max_examples=200, deadline=None)
@given(GRIDS, JITTERS, INSTANTS, st.lists(st.tuples(LATE, misfires()), min_size=1, max_size=6))
def test_every_point_of_a_grid_is_fired_or_recorded_once(
    schedule: Cron, jitter: float, added_at: datetime, claims: list[tuple[timedelta, Misfire]]
) -> None:
    timeline = Timeline(schedule, ZONE, jitter)
    first = due = timeline.first_slot(added_at, key=KEY)
    assert first is not None and due is not None
    offset = first - (next_after(schedule, added_at, ZONE) or first)
    assert timedelta() <= offset <= timedelta(seconds=jitter)
    now, last_run, handled = first, None, 0
    for late, misfire in claims:
        now = max(now, due) + late
        plan = timeline.plan(due, now, last_run, misfire, KEY)
        handled += (plan.gap.count if plan.gap else 0) + isinstance(plan, Fire)
        if plan.gap:
            assert plan.gap.first == due <= plan.gap.last <= now
            assert plan.gap.reason == ("overlap" if last_run is not None and due <= last_run else "misfire")
        if isinstance(plan, Fire):
            assert due <= plan.slot <= now and plan.delay is None
            assert plan.gap is None or plan.gap.last < plan.slot
            last_run = now
        else:
            assert plan.next_slot is None or plan.next_slot > now
        assert plan.next_slot is not None and plan.next_slot > due
        assert next_after(schedule, plan.next_slot - offset - TICK, ZONE) == plan.next_slot - offset
        due = plan.next_slot
    assert handled == count_between(schedule, first - offset, due - offset - TICK, ZONE)


@settings(max_examples=300, deadline=None)
@given(
    st.timedeltas(timedelta(milliseconds=1), timedelta(days=3)),
    st.booleans(),
    st.sampled_from(["from_start", "fixed_rate", "fixed_delay"]),
    INSTANTS,
    st.timedeltas(timedelta(days=-2), timedelta(days=60)),
    misfires(),
)
def test_every_missed_point_of_an_interval_is_fired_or_recorded_once(
    interval: timedelta, relative: bool, cadence: str, due: datetime, late: timedelta, misfire: Misfire
) -> None:
    timeline = Timeline(Every(interval, relative), ZONE, cadence=cadence)
    now = due + late
    plan = timeline.plan(due, now, misfire=misfire, key=KEY)
    latest = due + max(0, late // interval) * interval
    if isinstance(plan, Skip):
        assert misfire.policy == "skip"
        assert plan.gap == (due, latest, max(0, late // interval) + 1, "misfire")
        assert plan.next_slot is not None and plan.next_slot > now
        return
    assert (plan.slot - due) % interval == timedelta() and due <= plan.slot <= latest
    assert (plan.gap.count if plan.gap else 0) == (plan.slot - due) // interval
    assert plan.gap is None or (plan.gap.first, plan.gap.last) == (due, plan.slot - interval)
    if plan.slot < latest:
        assert misfire.policy == "catch_up" and plan.next_slot == plan.slot + interval
    elif cadence == "fixed_delay":
        assert (plan.next_slot, plan.delay) == (None, interval.total_seconds())
    else:
        assert plan.next_slot is not None and plan.next_slot > max(plan.slot, now)
        from_claim = cadence == "from_start" and now + interval > plan.slot
        assert relative or plan.next_slot == (now if from_claim else plan.slot) + interval


@given(GRIDS, JITTERS, JITTERS, INSTANTS, st.integers(0, 50))
def test_a_new_jitter_does_not_fire_a_point_twice(
    schedule: Cron, before: float, after: float, added_at: datetime, job: int
) -> None:
    key = str(job)
    slot = Timeline(schedule, ZONE, before).first_slot(added_at, key=key)
    point = next_after(schedule, added_at, ZONE)
    assert slot is not None and point is not None
    following = Timeline(schedule, ZONE, after).plan(slot, slot, key=key).next_slot
    assert following is not None and following > slot
    new_offset = (Timeline(schedule, ZONE, after).first_slot(added_at, key=key) or point) - point
    assert following - new_offset > point
