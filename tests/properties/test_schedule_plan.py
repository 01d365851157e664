"""Each slot of a job is fired or recorded exactly once, and time goes forward."""
# ruff: noqa: DTZ001  # hypothesis takes its bounds without a zone

from datetime import datetime, timedelta, timezone

from hypothesis import given, settings
from hypothesis import strategies as st

from celery_sqlbeat.schedule import (
    COALESCE,
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


RUNS = st.timedeltas(timedelta(milliseconds=1), timedelta(hours=30))


@settings(max_examples=200, deadline=None)
@given(GRIDS, JITTERS, INSTANTS, st.lists(RUNS, min_size=1, max_size=6))
def test_a_grid_that_skips_what_came_due_during_a_run_goes_on_at_its_next_point(
    schedule: Cron, jitter: float, added_at: datetime, runs: list[timedelta]
) -> None:
    """Also through the nights in which the clocks change."""
    timeline = Timeline(schedule, ZONE, jitter)
    first = due = timeline.first_slot(added_at, key=KEY)
    assert first is not None and due is not None
    offset = first - (next_after(schedule, added_at, ZONE) or first)
    fired = skipped = 0
    for took in runs:
        plan = timeline.plan(due, due, None, COALESCE, KEY)
        assert isinstance(plan, Fire) and plan.gap is None and plan.next_slot is not None
        fired, until, following = fired + 1, due + took, plan.next_slot
        if following <= until:
            passed = timeline.passed_by(following, until, KEY)
            assert passed.gap is not None and passed.next_slot is not None
            assert passed.gap.first == following <= passed.gap.last <= until < passed.next_slot
            assert passed.gap.reason == "overlap"
            skipped, following = skipped + passed.gap.count, passed.next_slot
        assert next_after(schedule, following - offset - TICK, ZONE) == following - offset
        due = following
    assert fired + skipped == count_between(schedule, first - offset, due - offset - TICK, ZONE)


@settings(max_examples=300, deadline=None)
@given(
    st.timedeltas(timedelta(milliseconds=1), timedelta(days=3)),
    st.booleans(),
    st.sampled_from(["from_start", "fixed_rate"]),
    INSTANTS,
    st.timedeltas(timedelta(), timedelta(days=60)),
)
def test_an_interval_that_skips_goes_on_at_a_multiple_of_it(
    interval: timedelta, relative: bool, cadence: str, claimed_at: datetime, took: timedelta
) -> None:
    timeline = Timeline(Every(interval, relative), ZONE, cadence=cadence)
    plan = timeline.plan(claimed_at, claimed_at, None, COALESCE, KEY)
    assert plan.next_slot is not None
    until = max(plan.next_slot, claimed_at + took)
    passed = timeline.passed_by(plan.next_slot, until, KEY)
    assert passed.gap is not None and passed.next_slot is not None
    assert passed.gap.first == plan.next_slot <= passed.gap.last <= until < passed.next_slot
    assert passed.gap.count == (passed.gap.last - passed.gap.first) // interval + 1
    if not relative:
        assert (passed.next_slot - claimed_at) % interval == timedelta(), "the claim and k intervals"
        assert passed.next_slot - until <= interval
