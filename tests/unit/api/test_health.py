"""What a probe says, given who is there."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from celery_sqlbeat.api.status import Process, hung_processes, machine_problems, namespace_problems

NOON = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
BEAT = Process("beat@a/1", "beat", "a", 1, "alive", "0.1", None, (), None, 0, 0.0, NOON, NOON, 0.0)
SILENT = replace(BEAT, state="silent", silent_seconds=500.0)
WORKER = replace(BEAT, id="w@b/2", kind="worker", host="b", pid=2)


def runs(_: int) -> bool:
    return True


def test_a_namespace_needs_a_living_beat() -> None:
    assert namespace_problems([BEAT], 0.0, 60.0) == []
    assert "no beat is alive" in namespace_problems([SILENT, WORKER], 0.0, 60.0)[0]


def test_a_namespace_whose_jobs_wait_for_too_long_is_not_healthy() -> None:
    assert namespace_problems([BEAT], 60.0, 60.0) == []
    assert "due for 61 s" in namespace_problems([BEAT], 61.0, 60.0)[0]


def test_a_machine_needs_a_process_of_its_own() -> None:
    assert machine_problems([BEAT, WORKER], "b") == []
    assert "on c" in machine_problems([BEAT, WORKER], "c")[0]
    assert machine_problems([SILENT], "a") != []


def test_what_runs_but_is_silent_hangs() -> None:
    assert "beat@a/1 has been silent for 500 s" in hung_processes([SILENT], "a", runs)[0]
    assert hung_processes([BEAT], "a", runs) == []


def test_what_no_longer_runs_does_not_hang() -> None:
    assert hung_processes([SILENT], "a", lambda _: False) == []


def test_a_node_of_another_machine_is_not_judged_here() -> None:
    assert hung_processes([SILENT], "b", runs) == []


def test_a_machine_on_which_nothing_has_registered_yet_is_only_starting() -> None:
    assert hung_processes([], "a", runs) == []


def test_a_process_that_took_the_id_of_one_that_was_killed_counts_for_itself() -> None:
    later = replace(BEAT, id="beat@a/1/new", started_at=NOON + timedelta(minutes=5))
    assert hung_processes([SILENT, later], "a", runs) == []
    assert hung_processes([later, SILENT], "a", runs) == []
