"""What a probe says, given who is there."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from celery_sqlbeat.handle.health import hanging, of_the_namespace, of_this_machine
from celery_sqlbeat.handle.status import Process

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
BEAT = Process("beat@a/1", "beat", "a", 1, "alive", "0.1", None, (), None, 0, 0.0, NOON, NOON, 0.0)
SILENT = replace(BEAT, state="silent", silent_seconds=500.0)
WORKER = replace(BEAT, id="w@b/2", kind="worker", host="b", pid=2)


def runs(_: int) -> bool:
    return True


def test_a_namespace_needs_a_living_beat() -> None:
    assert of_the_namespace([BEAT], 0.0, 60.0) == []
    assert "no beat is alive" in of_the_namespace([SILENT, WORKER], 0.0, 60.0)[0]


def test_a_namespace_whose_jobs_wait_for_too_long_is_not_healthy() -> None:
    assert of_the_namespace([BEAT], 60.0, 60.0) == []
    assert "due for 61 s" in of_the_namespace([BEAT], 61.0, 60.0)[0]


def test_a_machine_needs_a_process_of_its_own() -> None:
    assert of_this_machine([BEAT, WORKER], "b") == []
    assert "on c" in of_this_machine([BEAT, WORKER], "c")[0]
    assert of_this_machine([SILENT], "a") != []


def test_what_runs_but_is_silent_hangs() -> None:
    assert "beat@a/1 has been silent for 500 s" in hanging([SILENT], "a", runs)[0]
    assert hanging([BEAT], "a", runs) == []


def test_what_no_longer_runs_does_not_hang() -> None:
    assert hanging([SILENT], "a", lambda _: False) == []


def test_another_machine_is_probed_there() -> None:
    assert hanging([SILENT], "b", runs) == []


def test_a_machine_on_which_nothing_has_registered_yet_is_only_starting() -> None:
    assert hanging([], "a", runs) == []


def test_a_process_that_took_the_id_of_one_that_was_killed_counts_for_itself() -> None:
    later = replace(BEAT, id="beat@a/1/new", started_at=NOON + timedelta(minutes=5))
    assert hanging([SILENT, later], "a", runs) == []
    assert hanging([later, SILENT], "a", runs) == []
