"""The story of the demonstration, told from scenes: each chapter when it can be seen, and nobody killed too early."""

from datetime import datetime, timedelta, timezone
from typing import Any

from celery_sqlbeat.demo.scene import Scene, scene
from celery_sqlbeat.demo.story import BEATS, CRONTAB_JOB, LONG_JOB, WORKERS, Step, Story
from celery_sqlbeat.model import JobRecord, RunRecord, SeenNode

START = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
LEASE = 6.0
PIDS = dict(enumerate((*BEATS, *WORKERS), 100))


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def node_id(name: str) -> str:
    return f"{name}/id"


def nodes(now: float, *names: str) -> list[SeenNode]:
    def node(pid: int, name: str) -> SeenNode:
        values: dict[str, Any] = dict.fromkeys(SeenNode._fields)
        values.update(node_id=node_id(name), kind=name.split()[0], pid=pid, heartbeat_at=at(now - 0.5), claimed=0)
        return SeenNode(**values)

    return [node(pid, name) for pid, name in PIDS.items() if name in names]


def run(job: str, state: str, by: str = "beat 1", on: str | None = None, attempt: int = 1, **fields: Any) -> RunRecord:
    values: dict[str, Any] = dict.fromkeys(RunRecord._fields)
    values.update(
        run_id=f"{job}-{attempt}",
        job_id=job,
        job_name=job,
        kind="schedule",
        scheduled_for=START,
        slot_count=1,
        attempt=attempt,
        state=state,
        failures=0,
        lost_leases=0,
        claimed_by=node_id(by),
        claimed_at=at(1),
        published_at=at(1),
        started_by=node_id(on) if on else None,
    )
    return RunRecord(**{**values, **fields})


def job(name: str, held: RunRecord | None = None, now: float = 0, **fields: Any) -> JobRecord:
    values: dict[str, Any] = {**dict.fromkeys(JobRecord._fields), "job_id": name, "job_name": name, "enabled": 1}
    values.update(schedule="every 5s", next_run_time=at(now + 5))
    if held is not None:
        values.update(run_id=held.run_id, locked_by=held.started_by or held.claimed_by, lease_ends_at=at(now + 4))
    return JobRecord(**{**values, **fields})


def seen(now: float, runs: list[RunRecord], *jobs: JobRecord, alive: tuple[str, ...] = (*BEATS, *WORKERS)) -> Scene:
    return scene(at(now), jobs or (job("ping"),), runs, nodes(now, *alive), PIDS)


def texts(steps: list[Step]) -> str:
    return "\n".join(step.text for step in steps)


def told(story: Story, scene: Scene, elapsed: float) -> list[Step]:
    return list(story.tell(scene, elapsed))


def at_work() -> Story:
    story = Story(LEASE)
    assert "at work" in texts(told(story, seen(2, [run("ping", "success")]), 2))
    return story


def test_nobody_is_killed_before_all_are_at_work() -> None:
    story = Story(LEASE)
    without_one = seen(9, [run("ping", "success")], alive=BEATS)
    assert told(story, without_one, 9) == []
    assert told(story, seen(9, []), 9) == []


def test_the_beat_that_claimed_last_is_killed_and_another_one_carries_on() -> None:
    story = at_work()
    first = run("ping", "success", by="beat 2", claimed_at=at(3))
    (step,) = told(story, seen(5, [first, run("other", "success", claimed_at=at(2))]), 5)
    assert step.kill == "beat 2"
    assert told(story, seen(6, [first]), 6) == []
    later = run("pong", "claimed", by="beat 3", claimed_at=at(6.5))
    (step,) = told(story, seen(7, [first, later]), 7)
    assert step.text == "beat 3 carries on: it claimed pong 1.5 s after the kill"
    assert step.kill is None


def until_the_worker_is_killed() -> tuple[Story, RunRecord]:
    story = at_work()
    claimed = run("ping", "success", by="beat 1", claimed_at=at(3))
    told(story, seen(5, [claimed]), 5)
    told(story, seen(6, [claimed, run("pong", "success", by="beat 2", claimed_at=at(5.5))]), 6)
    long = run(LONG_JOB, "running", on="worker 2", started_at=at(5))
    assert told(story, seen(10, [long], job(LONG_JOB, long, 10)), 10) == [], "the lease has not had its time yet"
    steps = told(story, seen(11.5, [long], job(LONG_JOB, long, 11.5)), 11.5)
    assert "longer than its lease of 6 s" in steps[0].text
    assert [step.kill for step in steps] == [None, "worker 2"]
    assert "its lease has 4.0 s left" in steps[1].text
    return story, long


def test_a_worker_is_killed_in_the_middle_of_a_run_that_outlived_its_lease() -> None:
    until_the_worker_is_killed()


def test_the_take_over_is_the_next_attempt_of_the_same_slot() -> None:
    story, long = until_the_worker_is_killed()
    another_slot = run(LONG_JOB, "running", on="worker 1", attempt=2, scheduled_for=at(60), started_at=at(15))
    assert told(story, seen(16, [long, another_slot]), 16) == []
    queued = run(LONG_JOB, "claimed", attempt=2)
    assert told(story, seen(16, [long, queued]), 16) == []
    again = run(LONG_JOB, "running", on="worker 1", attempt=2, started_at=at(17))
    (step,) = told(story, seen(17.5, [long, again]), 17.5)
    assert "worker 1 takes build-report over from worker 2, attempt 2, 5.5 s after the kill" in step.text
    (step,) = told(story, seen(27, [long, again._replace(state="success")]), 27)
    assert step.pause == LONG_JOB


def test_the_dead_letter_and_the_crontab_are_told_whenever_they_come() -> None:
    story = Story(LEASE)
    dead = run("rates", "dlq", failures=3, error="Traceback\nConnectionError: 503")
    assert "rates failed 3 times and is a dead letter: ConnectionError: 503" in texts(told(story, seen(1, [dead]), 1))
    fired = run(CRONTAB_JOB, "success")
    assert "12:00:00 UTC: the crontab fires" in texts(told(story, seen(1, [dead, fired]), 1))
    assert told(story, seen(1, [dead, fired]), 1) == [], "and once only"


def test_what_has_not_been_seen_has_a_name() -> None:
    assert "the take-over of its run" in Story(LEASE).missing
    story, _ = until_the_worker_is_killed()
    assert story.missing == ["a dead letter", "the take-over of its run", "the end of that run", "the crontab"]


def test_a_scene_tells_what_a_job_is_doing() -> None:
    held = run("long", "running", on="worker 1", attempt=2, started_at=at(3))
    queued = run("queued", "claimed")
    lines = {
        line.name: line
        for line in seen(
            5,
            [held, queued],
            job("long", held, 5),
            job("queued", queued, 5),
            job("calm"),
            job("again", retry_at=at(7)),
            job("off", enabled=0),
        ).jobs
    }
    assert {name: line.doing for name, line in lines.items()} == {
        "long": "running, attempt 2",
        "queued": "queued",
        "calm": "waits",
        "again": "waits for retry",
        "off": "paused",
    }
    hold = lines["long"].hold
    assert hold is not None
    assert (hold.holder, hold.running_seconds, hold.lease_left) == ("worker 1", 2.0, 4.0)
    assert lines["again"].next_seconds == 2.0
