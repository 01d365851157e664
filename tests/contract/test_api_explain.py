"""Why a job ran or did not run: told from real rows."""

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_sqlbeat.api import Handle
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import NoSuchJob
from celery_sqlbeat.model import CODE_SCHEDULE, LEFT_THE_CODE, Node
from celery_sqlbeat.model.lifecycle import (
    CANCELLED,
    DLQ,
    RETRY,
    SKIPPED,
    Backoff,
    Ending,
    after_refusal,
    after_success,
    left_to_others,
)
from tests.support.views import NodeView
from tests.support.world import NOON, OVERLAP, World


@pytest.fixture
def beat(world: World) -> Handle:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(timezone="UTC")
    return Handle(app, read_settings({"sqlbeat_namespace": world.namespace}, {}), world.store)


def now(beat: Handle, name: str) -> str:
    return "\n".join(beat.explain(name).now)


def last(beat: Handle, name: str) -> str:
    return beat.explain(name).slots[0].says


def live(world: World) -> None:
    NodeView(world.store).heartbeat(Node("beat@a/1", "beat", "a", 1, "0.1"))
    NodeView(world.store).heartbeat(Node("worker@a/2", "worker", "a", 2, "0.1", queues='["celery"]'))


def test_a_job_that_is_not_due_says_when_it_is(beat: Handle, world: World) -> None:
    name = world.add(NextRunTime=NOON + timedelta(seconds=42))
    assert now(beat, name) == "it is not due yet: its next slot comes in 42 s"
    far = world.add(NextRunTime=NOON + timedelta(hours=30))
    assert now(beat, far) == "it is not due yet: its next slot comes in 30 h"


def test_a_due_job_without_a_beat_says_what_to_start(beat: Handle, world: World) -> None:
    name = world.add()
    world.later(30)
    assert "it has been due for 30 s\nno beat is alive to claim it: start celery -A app beat" in now(beat, name)
    live(world)
    assert "the living beat claims it" in now(beat, name)


def test_a_new_row_waits_for_its_first_slot(beat: Handle, world: World) -> None:
    name = world.add(NextRunTime=None)
    assert now(beat, name).startswith("it is new: a beat works out its first slot")
    assert beat.explain(name).next_fires[0].at == NOON + timedelta(seconds=60)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"Enabled": 0, "DisabledReason": "month end"}, "it is paused (month end): go on with"),
        ({"Enabled": 0, "DisabledReason": "finished"}, "it is finished"),
        ({"Enabled": 0, "DisabledReason": LEFT_THE_CODE}, "it is disabled: its entry left the beat_schedule"),
        (
            {"Quarantine": "Args = 'x': write a JSON array"},
            "it is set aside, since it cannot run as it is written: Args = ",
        ),
    ],
)
def test_a_job_that_does_not_run_says_why(beat: Handle, world: World, columns: dict[str, Any], says: str) -> None:
    assert now(beat, world.add(**columns)).startswith(says)


def test_a_row_that_cannot_be_read_is_explained_as_far_as_it_can(beat: Handle, world: World) -> None:
    name = world.add(Schedule="every now and then", Args="nonsense")
    world.claim()
    found = beat.explain(name)
    assert "Schedule" in found.now[0] or "Args" in found.now[0]
    assert found.next_fires == ()


def test_a_claimed_job_is_about_to_be_sent(beat: Handle, world: World) -> None:
    name = world.add()
    claim = world.claim_one()
    assert f"beat-1 has claimed it and is about to send its message, run {claim.run_id}; 15 s of the" in now(beat, name)
    assert last(beat, name) == "claimed by beat-1: its message is about to be sent"


def test_a_queued_job_names_its_workers_or_that_there_are_none(beat: Handle, world: World) -> None:
    name = world.add()
    world.publish(world.claim_one())
    assert "its message was sent and waits for a worker" in now(beat, name)
    assert last(beat, name) == "claimed by beat-1: its message waits for a worker"
    assert "unless one starts it, a beat checks it in 2 min" in now(beat, name)
    assert "no living worker with celery-sqlbeat consumes queue 'celery'" in now(beat, name)
    live(world)
    assert "queue 'celery' is consumed by worker@a/2" in now(beat, name)
    world.later(130)
    world.sweep()
    assert "waits for a worker, deadline 2 of 4, run" in now(beat, name)


def test_a_message_to_another_queue_needs_a_worker_there(beat: Handle, world: World) -> None:
    name = world.add(Options='{"queue": "slow"}')
    live(world)
    world.publish(world.claim_one())
    assert "no living worker with celery-sqlbeat consumes queue 'slow': start one with -Q slow" in now(beat, name)


def test_a_running_job_says_who_runs_it_and_how_much_of_the_lease_is_left(beat: Handle, world: World) -> None:
    name = world.add()
    run = world.running()
    world.later(20)
    assert now(beat, name) == f"worker-1 runs it, run {run.run_id}; 100 s of the lease are left"
    assert last(beat, name) == "runs on worker-1"
    world.later(110)
    assert "the lease ended 10 s ago: a beat takes it over" in now(beat, name)


def test_a_lock_by_hand_is_called_so(beat: Handle, world: World) -> None:
    name = world.add(LockedBy="dba", LockedAt=NOON)
    assert "it is locked by dba, but not for a run" in now(beat, name)


def test_a_retry_says_when_and_how_many_are_left(beat: Handle, world: World) -> None:
    name = world.add()
    world.finish(world.running(), Ending(RETRY, "failed", 30.0, 1, 0, "ValueError: no"))
    assert "its last attempt did not succeed; it is tried again in 30 s" in now(beat, name)
    assert "so far 1 failure, at most 3 retries: ValueError: no" in now(beat, name)
    assert last(beat, name) == "did not succeed (failed): ValueError: no; it is tried again"


def test_an_extra_slot_that_waits_is_named(beat: Handle, world: World) -> None:
    name = world.add()
    world.running()
    run = beat.jobs.run_now(name)
    assert f"an extra slot waits until the job is free, run {run.id}" in now(beat, name)
    beat.jobs.pause(name)
    assert "waits until the job is resumed" in now(beat, name)


def test_a_run_that_overlaps_others_is_named(beat: Handle, world: World) -> None:
    name = world.add(Policies=OVERLAP)
    claim = world.claim_one()
    world.beat.mark_dispatched([claim])
    assert world.start(claim) is not None
    assert f"run {claim.run_id} goes on beside it on worker-1" in now(beat, name)
    assert last(beat, name) == "runs on worker-1"


def test_a_job_that_goes_says_so(beat: Handle, world: World) -> None:
    name = world.add()
    world.running()
    beat.jobs.delete(name)
    assert now(beat, name).startswith("it is deleted as soon as its run has ended")


@pytest.mark.parametrize(
    ("ending", "says"),
    [
        (after_success(), "ran for 4.0 s on worker-1"),
        (after_success("replaced"), "ran for 4.0 s on worker-1 (replaced)"),
        (
            Ending(DLQ, "retries exhausted", None, 1, 0, "ValueError: no"),
            "failed for good, retries exhausted: ValueError: no",
        ),
        (Ending(CANCELLED, "by hand"), "cancelled: by hand"),
        (Ending(SKIPPED, "expired"), "skipped: its message expired before a worker took it"),
    ],
    ids=["success", "replaced", "dead", "cancelled", "expired"],
)
def test_a_slot_tells_how_it_ended(beat: Handle, world: World, ending: Ending, says: str) -> None:
    name = world.add()
    run = world.running()
    world.later(4)
    world.finish(run, ending)
    assert last(beat, name) == says


def test_a_slot_that_was_late_says_by_how_much(beat: Handle, world: World) -> None:
    name = world.add()
    world.later(7)
    world.finish(world.running())
    assert last(beat, name) == "ran for 0.0 s on worker-1, 7.0 s late"


def test_a_slot_without_a_lease_says_so(beat: Handle, world: World) -> None:
    name = world.add(Policies=OVERLAP)
    world.beat.mark_dispatched([world.claim_one()])
    told = "sent without a lease; what became of it nobody recorded, since no worker of this store has begun it so far"
    assert last(beat, name) == told


def test_a_slot_that_nobody_started_says_so(beat: Handle, world: World) -> None:
    name = world.add()
    world.publish(world.claim_one())
    for _ in range(6):
        world.later(4000)
        world.sweep()
    assert "sent, but never started before its last deadline" in beat.explain(name).slots[-1].says


def test_a_slot_that_came_too_late_says_which_way_it_ended(beat: Handle, world: World) -> None:
    name = world.add()
    early = world.never_started()
    world.running()
    assert world.start(early) is None and world.refused(early) is not None
    told = "skipped: its message came after its last deadline, while another run held the job (overlap)"
    assert told in [slot.says for slot in beat.explain(name).slots]


def test_a_slot_that_was_left_to_workers_without_the_extension_says_so(beat: Handle, world: World) -> None:
    name = world.add()
    world.publish(world.claim_one())
    world.later(400)
    world.beat.reclaim([(lease, left_to_others()) for lease in world.beat.ended(500)])
    assert last(beat, name) == "sent beside workers without celery-sqlbeat; if one of them ran it, nobody recorded that"


def test_a_gap_is_one_story(beat: Handle, world: World) -> None:
    name = world.add(NextRunTime=NOON - timedelta(minutes=5))
    world.finish(world.running())
    fired, missed = beat.explain(name).slots
    assert fired.says.startswith("ran for")
    assert (missed.slots, missed.state) == (5, "skipped")
    assert missed.says.startswith("5 slots skipped: no beat took it up in time")


def test_the_attempts_of_a_slot_are_one_story(beat: Handle, world: World) -> None:
    name = world.add()
    for _ in range(2):
        world.finish(world.running(), Ending(RETRY, "failed", 0.0, 1))
    world.finish(world.running())
    (only,) = beat.explain(name).slots
    assert only.says == "ran for 0.0 s on worker-1; attempt 3"
    assert len(only.attempts) == 3


def test_so_many_slots_are_told_as_were_asked_for(beat: Handle, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_sqlbeat.api.explain.PAGE", 2)
    name = world.add()
    for _ in range(5):
        world.finish(world.running(), Ending(RETRY, "failed", 0.0, 1))
        world.finish(world.running())
        world.later(60)
    assert len(beat.explain(name, 3).slots) == 3
    assert [len(each.attempts) for each in beat.explain(name, 10).slots] == [2] * 5


def test_ten_fires_are_foretold_with_what_the_clocks_do(beat: Handle, world: World) -> None:
    at = NOON + timedelta(days=20, hours=13, minutes=30)
    name = world.add(Schedule="cron 30 2 * * *", TimeZone="Europe/Berlin", NextRunTime=at)
    found = beat.explain(name)
    assert len(found.next_fires) == 10
    notes = {f"{each.local:%m-%d %H:%M}": each.note for each in found.next_fires if each.note}
    assert [*notes] == ["03-28 03:00"]
    assert "does not exist" in (notes["03-28 03:00"] or "")
    assert "cron 30 2 * * *, read in Europe/Berlin" in found.remarks


def test_the_fires_of_a_running_interval_count_from_its_claim(beat: Handle, world: World) -> None:
    name = world.add()
    world.running()
    world.later(20)
    assert beat.explain(name).next_fires[0].at == NOON + timedelta(seconds=60)
    world.later(100)
    assert beat.explain(name).next_fires[0].at == world.now


def test_what_is_due_fires_for_the_latest_missed_slot(beat: Handle, world: World) -> None:
    name = world.add(NextRunTime=NOON - timedelta(seconds=150))
    assert beat.explain(name).next_fires[0].at == NOON - timedelta(seconds=30)


def test_a_job_that_only_code_can_time_is_not_foretold(beat: Handle, world: World) -> None:
    name = world.add(Schedule=CODE_SCHEDULE, CodeKey="k", CodeOwner="shop")
    live(world)
    found = beat.explain(name)
    assert found.next_fires == ()
    assert "only the code that defines this job knows when it fires" in found.remarks
    assert "only a beat whose code defines it may claim it" in "\n".join(found.now)


def test_a_finished_schedule_foretells_nothing(beat: Handle, world: World) -> None:
    name = world.add(Schedule="once 2027-03-01T12:00:00Z")
    world.finish(world.running())
    assert beat.explain(name).next_fires == ()


def test_a_job_that_is_not_there_is_named(beat: Handle) -> None:
    with pytest.raises(NoSuchJob, match="'nobody'"):
        beat.explain("nobody")


def test_an_explanation_becomes_json(beat: Handle, world: World) -> None:
    import json

    name = world.add()
    world.finish(world.running())
    again = json.loads(json.dumps(beat.explain(name).as_json()))
    assert set(again) == {"job", "now", "slots", "next_fires", "remarks"}
    assert again["slots"][0]["state"] == "success"
    assert len(again["next_fires"]) == 10


def test_a_slot_that_could_not_be_sent_says_why_and_not_why_an_earlier_one_failed(beat: Handle, world: World) -> None:
    name = world.add()
    world.finish(world.running(), Ending(DLQ, "retries exhausted", None, 1, 0, "OldError"))
    world.later(60)
    world.beat.release_claims([world.claim_one()], "NotFound: no exchange 'x'", 8)
    world.later(1)
    live(world)
    assert now(beat, name) == "its slot was given back (NotFound: no exchange 'x'); it is due again in 7.0 s"
    assert "OldError" not in last(beat, name)
    world.later(7)
    world.beat.fail([(world.claim_one(), after_refusal(0, 3, Backoff(8.0), lambda: 1.0, "TypeError: y()"))])
    assert now(beat, name) == (
        "no message can be made of it; it is tried again in 8.0 s\nso far 1 failure, at most 3 retries: TypeError: y()"
    )
    assert last(beat, name) == "did not succeed (cannot be published): TypeError: y(); it is tried again"


def test_an_extra_slot_that_ended_is_not_taken_for_the_attempt_that_waits(beat: Handle, world: World) -> None:
    name = world.add()
    world.finish(world.running(), Ending(RETRY, "failed", 300.0, 1, 0, "TheError"))
    world.later(1)
    world.add_slot(world.job(name)["id"])
    world.finish(world.running(), Ending(DLQ, "retries exhausted", None, 1, 0, "OfTheExtraSlot"))
    assert "TheError" in now(beat, name) and "OfTheExtraSlot" not in now(beat, name)
