"""`celery sqlbeat submit` reads durations as people write them."""

from datetime import timedelta

import click
import pytest

from celery_sqlbeat.cli.submit import duration_value, submit

WHERE = click.Context(submit), submit.params[3]


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("3w", timedelta(weeks=3)),
        ("1d12h", timedelta(days=1, hours=12)),
        ("90s", timedelta(seconds=90)),
        ("90", timedelta(seconds=90)),
        ("1.5", timedelta(seconds=1.5)),
        ("0.5h", timedelta(minutes=30)),
        ("0", timedelta()),
        (None, None),
    ],
)
def test_a_duration_is_read(text: str | None, duration: timedelta | None) -> None:
    assert duration_value(*WHERE, text) == duration


@pytest.mark.parametrize("text", ["", "w", "soon", "-1", "1x", "1d 12h", "1..5s", "9" * 400])
def test_what_is_no_duration_is_refused_by_what_it_says(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is no duration|is too long"):
        duration_value(*WHERE, text)
