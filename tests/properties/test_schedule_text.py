"""What a schedule is written as reads back as the same schedule, and any other text is refused."""

from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from celery_sqlbeat.errors import ScheduleError
from celery_sqlbeat.schedule import Every, Once, Solar, parse

UTC = timezone.utc


@given(
    st.text(max_size=60)
    | st.text("every cronsladuwith0123456789.*/,-+:TZ", max_size=60)
    | st.tuples(st.sampled_from(["every ", "cron ", "solar sunset ", "once "]), st.text(" 0123456789.*/,-dhms:TZ")).map(
        "".join
    )
)
def test_any_text_is_a_schedule_that_reads_back_or_an_error(text: str) -> None:
    try:
        schedule = parse(text)
    except ScheduleError:
        return
    assert parse(str(schedule)) == schedule
    assert str(parse(str(schedule))) == str(schedule)


@given(st.timedeltas(timedelta(milliseconds=1), timedelta(days=36500)), st.booleans())
def test_an_interval_reads_back_to_the_microsecond(interval: timedelta, relative: bool) -> None:
    assert parse(str(Every(interval, relative))) == Every(interval, relative)


@given(st.floats(-90, 90), st.floats(-180, 180))
def test_a_place_reads_back_exactly(latitude: float, longitude: float) -> None:
    assert parse(str(Solar("sunset", latitude, longitude))) == Solar("sunset", latitude, longitude)


@given(st.datetimes(timezones=st.timezones()))
def test_an_instant_reads_back_in_utc(at: datetime) -> None:
    try:
        once = Once(at)
    except ScheduleError:
        return  # the first or last hours of the calendar
    assert parse(str(once)) == once
    assert once.at == at.astimezone(UTC) and once.at.tzinfo is UTC
