"""What beats say about others beside them."""

from datetime import datetime, timezone

from celery_sqlbeat.beat_schedule.sync import problems
from celery_sqlbeat.model import LivingRelease

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
OWN = {"a": "1", "b": "2"}


def living(owner: str = "shop", release: str = "v2", entries: dict[str, str] | None = None) -> LivingRelease:
    return LivingRelease(owner, release, f"beat@{owner}", NOON, entries)


def says(*others: LivingRelease, namespace: str = "default") -> list[str]:
    found = problems(namespace, "shop", "v1", OWN, [living(release="v1", entries=OWN), *others])
    return [f"{one.says}: {one.remedy}" for one in found]


def test_nothing_is_wrong_with_beats_of_one_schedule() -> None:
    assert says() == says(living(entries=OWN)) == []


def test_another_app_is_named_with_the_line_that_separates_it() -> None:
    (text,) = says(living("office"), living("office", "v3"))
    assert "the apps shop and office (beat@office)" in text and 'sqlbeat_namespace = "shop"' in text
    (text,) = says(living("office"), namespace="shop")
    assert 'sqlbeat_namespace = "office"' in text


def test_another_schedule_of_the_app_is_named_by_its_differences() -> None:
    (text,) = says(living(entries={"b": "3", "c": "1"}))
    assert "only there: c; only here: a; otherwise defined: b" in text and 'sqlbeat_namespace = "default-2"' in text
    (text,) = says(living(entries={f"job-{n:02}": "" for n in range(12)} | OWN))
    assert "job-09 and 2 more" in text and "only here" not in text


def test_a_release_that_tells_nothing_is_no_problem_of_its_own() -> None:
    assert says(living(entries=None)) == []
