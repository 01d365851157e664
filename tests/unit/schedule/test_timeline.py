"""Which slot fires, which are recorded as missed, and when the next one is."""

from datetime import datetime, timedelta, timezone

import pytest

from celery_sqlbeat.schedule import Fire, Gap, Misfire, Skip, Timeline, parse, zone_named

UTC = timezone.utc
BERLIN = zone_named("Europe/Berlin")


def at(text: str) -> datetime:
    """Return an instant of one day in winter, given by its time."""
    return datetime.fromisoformat(f"2026-01-15T{text}").replace(tzinfo=UTC)


def timeline(text: str, cadence: str = "from_start", jitter: float = 0.0) -> Timeline:
    return Timeline(parse(text), BERLIN, jitter, cadence)


# The first slot


def test_a_new_interval_begins_one_interval_after_it_was_added() -> None:
    assert timeline("every 10m").first_slot(at("12:00")) == at("12:10")
    assert timeline("every 1h relative").first_slot(at("12:34:56")) == at("13:00")


@pytest.mark.parametrize(
    ("start", "first"),
    [("12:30", "12:30"), ("12:00", "12:00"), ("11:59", "12:09"), ("11:00", "12:00"), ("00:01", "12:01")],
)
def test_an_interval_with_a_start_keeps_to_its_grid(start: str, first: str) -> None:
    assert timeline("every 10m").first_slot(at("12:00"), at(start)) == at(first)


def test_a_crontab_begins_at_its_next_point_and_not_before_its_start() -> None:
    hourly = timeline("cron 0 * * * *")
    assert hourly.first_slot(at("12:00")) == at("13:00")
    assert hourly.first_slot(at("12:00"), at("10:00")) == at("13:00")
    assert hourly.first_slot(at("12:00"), at("14:30")) == at("15:00")
    assert hourly.first_slot(at("12:00"), at("15:00")) == at("15:00")


def test_a_single_instant_is_its_own_first_slot_even_in_the_past() -> None:
    assert timeline("once 2026-01-15T09:00:00Z").first_slot(at("12:00")) == at("09:00")


# In time


def test_a_slot_in_time_is_fired_with_no_gap() -> None:
    assert timeline("every 10s").plan(at("12:00:00"), at("12:00:01")) == Fire(
        at("12:00:00"), at("12:00:11"), None, None
    )
    assert timeline("cron * * * * *").plan(at("12:00"), at("12:00:05")) == Fire(at("12:00"), at("12:01"), None, None)


def test_a_single_instant_fires_and_has_no_next_slot() -> None:
    once = timeline("once 2026-01-15T12:00:00Z")
    assert once.plan(at("12:00"), at("12:00:01")) == Fire(at("12:00"), None, None, None)
    # Moved by hand: once is once all the same.
    assert once.plan(at("11:00"), at("11:00:01")) == Fire(at("11:00"), None, None, None)


@pytest.mark.parametrize(
    ("cadence", "next_slot", "delay"),
    [("from_start", "12:00:13", None), ("fixed_rate", "12:00:10", None), ("fixed_delay", None, 10.0)],
)
def test_the_cadence_decides_when_an_interval_comes_again(cadence: str, next_slot: str | None, delay: float) -> None:
    plan = timeline("every 10s", cadence).plan(at("12:00:00"), at("12:00:03"))
    assert plan == Fire(at("12:00:00"), at(next_slot) if next_slot else None, delay, None)


def test_a_relative_interval_comes_again_on_the_round_minute() -> None:
    assert timeline("every 10m relative").plan(at("12:00"), at("12:00:03")).next_slot == at("12:10")
    assert timeline("every 10m relative", "fixed_rate").plan(at("12:00:40"), at("12:00:43")).next_slot == at("12:10")


def test_the_cadence_does_not_touch_a_crontab() -> None:
    for cadence in ("from_start", "fixed_rate", "fixed_delay"):
        assert timeline("cron 0 * * * *", cadence).plan(at("12:00"), at("12:05")).next_slot == at("13:00")


@pytest.mark.parametrize("text", ["every 10s", "every 10s relative", "cron * * * * *", "every 1d relative"])
@pytest.mark.parametrize("cadence", ["from_start", "fixed_rate"])
def test_a_next_slot_is_later_than_the_slot_even_if_the_servers_clock_stepped_back(text: str, cadence: str) -> None:
    stepped_back = timeline(text, cadence)
    plan = stepped_back.plan(at("12:00"), at("11:00"))
    assert isinstance(plan, Fire) and plan.slot == at("12:00")
    assert plan.next_slot is not None and plan.next_slot > at("12:00")
    retried, _ = stepped_back.next_after_retry(at("12:00"), at("11:00"))
    assert retried is not None and retried > at("12:00")


# Missed


def test_missed_slots_collapse_into_the_latest() -> None:
    gap = Gap(at("12:00:00"), at("12:00:20"), 3, "misfire")
    assert timeline("every 10s").plan(at("12:00:00"), at("12:00:34")) == Fire(at("12:00:30"), at("12:00:44"), None, gap)
    gap = Gap(at("12:00"), at("12:04"), 5, "misfire")
    assert timeline("cron * * * * *").plan(at("12:00"), at("12:05")) == Fire(at("12:05"), at("12:06"), None, gap)


def test_slots_missed_while_the_previous_run_was_going_are_an_overlap() -> None:
    plan = timeline("every 10s").plan(at("12:00:10"), at("12:00:35"), last_run=at("12:00:34"))
    assert plan.gap == Gap(at("12:00:10"), at("12:00:20"), 2, "overlap")
    plan = timeline("every 10s").plan(at("12:00:10"), at("12:00:35"), last_run=at("12:00:09"))
    assert plan.gap == Gap(at("12:00:10"), at("12:00:20"), 2, "misfire")


def test_a_slot_later_than_the_grace_is_skipped() -> None:
    every = timeline("every 10m")
    late = every.plan(at("12:00"), at("12:02"), misfire=Misfire("skip"))
    assert late == Skip(Gap(at("12:00"), at("12:00"), 1, "misfire"), at("12:10"))
    assert every.plan(at("12:00"), at("12:01"), misfire=Misfire("skip")) == Fire(at("12:00"), at("12:11"), None, None)
    assert isinstance(every.plan(at("12:00"), at("12:02"), misfire=Misfire("skip", grace=120)), Fire)
    assert isinstance(every.plan(at("12:00"), at("12:00:01"), misfire=Misfire("skip", grace=0)), Skip)


def test_the_latest_slot_within_the_grace_is_fired_and_those_before_it_are_skipped() -> None:
    plan = timeline("every 10m").plan(at("12:00"), at("12:20:30"), misfire=Misfire("skip"))
    assert plan == Fire(at("12:20"), at("12:30:30"), None, Gap(at("12:00"), at("12:10"), 2, "misfire"))


def test_a_single_instant_missed_beyond_its_grace_is_skipped_for_good() -> None:
    once = timeline("once 2026-01-15T12:00:00Z")
    skipped = once.plan(at("12:00"), at("12:02"), misfire=Misfire("skip"))
    assert skipped == Skip(Gap(at("12:00"), at("12:00"), 1, "misfire"), None)
    assert once.plan(at("12:00"), at("18:00")) == Fire(at("12:00"), None, None, None)


@pytest.mark.parametrize("text", ["every 1m", "cron * * * * *"])
def test_missed_slots_are_caught_up_in_turn_oldest_first_and_only_the_latest_few(text: str) -> None:
    job, now, due = timeline(text, "fixed_rate"), at("12:08:30"), at("12:00")
    fired: list[datetime] = []
    gaps: list[Gap] = []
    while due <= now:
        plan = job.plan(due, now, misfire=Misfire("catch_up", catch_up_limit=3))
        assert isinstance(plan, Fire) and plan.next_slot is not None
        fired.append(plan.slot)
        gaps += [plan.gap] if plan.gap else []
        due = plan.next_slot
    assert fired == [at("12:06"), at("12:07"), at("12:08")]
    assert gaps == [Gap(at("12:00"), at("12:05"), 6, "misfire")]
    assert due == at("12:09")


def test_an_interval_that_has_caught_up_goes_back_to_its_cadence() -> None:
    plan = timeline("every 1m").plan(at("12:08"), at("12:08:30"), misfire=Misfire("catch_up"))
    assert plan == Fire(at("12:08"), at("12:09:30"), None, None)
    plan = timeline("every 1m", "fixed_delay").plan(at("12:07"), at("12:08:30"), misfire=Misfire("catch_up"))
    assert plan == Fire(at("12:07"), at("12:08"), None, None)


def test_celerys_starting_deadline_skips_old_slots_of_crontabs_only() -> None:
    hourly = timeline("cron 0 * * * *")
    skipped = hourly.plan(at("09:00"), at("12:30"), misfire=Misfire(deadline=600))
    assert skipped == Skip(Gap(at("09:00"), at("12:00"), 4, "misfire"), at("13:00"))
    assert isinstance(hourly.plan(at("09:00"), at("12:10"), misfire=Misfire(deadline=600)), Fire)
    assert isinstance(timeline("every 1h").plan(at("09:00"), at("12:30"), misfire=Misfire(deadline=600)), Fire)


def test_celerys_starting_deadline_bounds_what_is_caught_up() -> None:
    plan = timeline("cron 0 * * * *").plan(at("06:00"), at("12:30"), misfire=Misfire("catch_up", deadline=7200))
    assert plan == Fire(at("11:00"), at("12:00"), None, Gap(at("06:00"), at("10:00"), 5, "misfire"))


def test_a_slot_set_by_hand_fires_and_the_grid_goes_on_after_it() -> None:
    hourly = timeline("cron 0 * * * *")
    assert hourly.plan(at("12:17"), at("12:18")) == Fire(at("12:17"), at("13:00"), None, None)
    plan = hourly.plan(at("09:30"), at("12:18"))
    assert plan == Fire(at("12:00"), at("13:00"), None, Gap(at("09:30"), at("11:00"), 3, "misfire"))


@pytest.mark.parametrize("text", ["every 0.001s", "cron * * * * *", "cron */7 3,4 * * mon", "solar sunset 51.5 0"])
@pytest.mark.parametrize("misfire", ["coalesce", "skip", "catch_up"])
def test_a_job_due_since_1900_is_planned(text: str, misfire: str) -> None:
    """Slot by slot that would not end: the first of these has had some four million million."""
    job, due = timeline(text), datetime(1900, 1, 1, tzinfo=UTC)
    plan = job.plan(due, at("12:00"), misfire=Misfire(misfire, catch_up_limit=1000))
    assert plan.gap is not None and plan.gap.first == due and plan.gap.count > 10_000
    assert plan.next_slot is not None and plan.next_slot > due


@pytest.mark.parametrize("text", ["every 36500d", "cron * * * * *", "solar sunset 51.5 0", "every 1d relative"])
def test_the_end_of_the_calendar_raises_nothing(text: str) -> None:
    last = datetime.max.replace(tzinfo=UTC)
    job = timeline(text, jitter=3600)
    assert job.first_slot(last, key="job") is None
    assert job.plan(last, last, key="job").next_slot is None
    assert job.next_after_retry(last, last, key="job")[0] is None


# A later attempt of the same slot


def test_a_later_attempt_counts_from_its_own_claim_or_keeps_the_grid() -> None:
    slot, now = at("12:00"), at("12:25")
    assert timeline("every 10m").next_after_retry(slot, now) == (at("12:35"), None)
    # What passed meanwhile is not lost: the plan for the slot after this one records it.
    assert timeline("every 10m", "fixed_rate").next_after_retry(slot, now) == (at("12:10"), None)
    assert timeline("every 10m", "fixed_delay").next_after_retry(slot, now) == (None, 600.0)
    assert timeline("cron */10 * * * *").next_after_retry(slot, now) == (at("12:10"), None)
    assert timeline("once 2026-01-15T12:00:00Z").next_after_retry(slot, now) == (None, None)


# Jitter


def test_jitter_is_stable_for_a_job_and_spreads_jobs_evenly() -> None:
    job = timeline("cron 0 * * * *", jitter=60)
    offsets = [(job.first_slot(at("12:00"), key=str(key)) or at("00:00")) - at("13:00") for key in range(1000)]
    assert offsets == [(job.first_slot(at("12:00"), key=str(key)) or at("00:00")) - at("13:00") for key in range(1000)]
    assert all(timedelta() <= offset < timedelta(seconds=60) for offset in offsets)
    assert len(set(offsets)) == 1000
    assert timedelta(seconds=28) < sum(offsets, timedelta()) / 1000 < timedelta(seconds=32)


def test_jitter_shifts_every_point_of_a_grid_and_the_first_of_an_interval() -> None:
    hourly, every = timeline("cron 0 * * * *", jitter=60), timeline("every 1h", "fixed_rate", jitter=60)
    first = hourly.first_slot(at("12:00"), key="job")
    assert first is not None
    offset = first - at("13:00")
    assert every.first_slot(at("12:00"), key="job") == first
    late = first + timedelta(hours=2, minutes=5)
    gap = Gap(first, first + timedelta(hours=1), 2, "misfire")
    for job in (hourly, every):
        assert job.plan(first, late, key="job") == Fire(at("15:00") + offset, at("16:00") + offset, None, gap)


def test_timelines_of_the_same_text_are_equal() -> None:
    assert timeline("every 5s") == timeline("every 5s") and hash(timeline("every 5s")) == hash(timeline("every 5s"))
    assert timeline("every 5s") != timeline("every 5s", jitter=1)


def test_the_beginning_of_the_calendar_raises_nothing() -> None:
    first = datetime.min.replace(tzinfo=UTC)  # as a program that knows no NULL may write it
    for text in ("every 1s", "every 1d relative", "cron 0 9 * * *", "solar sunset 51.5 0", "once 2026-01-15T09:00:00Z"):
        plan = timeline(text, jitter=3600).plan(first, at("12:00"), misfire=Misfire("skip", grace=1e30), key="job")
        assert isinstance(plan, Fire) and first <= plan.slot <= at("12:00")
