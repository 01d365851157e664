"""Claims: what is due, for whom, and what is recorded with a claim."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from celery_sqlbeat.model import (
    CODE_SCHEDULE,
    Claimable,
    CodeAddition,
    CodeChanges,
    CodeDefinition,
    CodeImport,
    DeleteJob,
    PauseJob,
)
from celery_sqlbeat.store.records import EVERY_SHARE, JobQuery
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.world import DISPATCH, HOUR, MINUTE, SECOND, World


class ClaimContract(Contract):
    """Rules of `due` and `claim`."""

    def test_a_due_job_is_claimed_by_exactly_one_of_two_beats(self, world: World) -> None:
        name = world.add()
        first, second = world.claim("beat-a"), world.claim("beat-b")
        assert [claim.job_name for claim in first.claims] == [name]
        assert second.claims == []
        assert world.job(name).locked_by == "beat-a"

    def test_of_two_beats_that_read_the_same_due_jobs_one_claims_them(self, world: World) -> None:
        world.add()
        other = world.another_store()
        due, same = world.store.due(10), other.due(10)
        first = world.store.claim(due, world.planner(due), "beat-a", DISPATCH)
        second = other.claim(same, world.planner(same), "beat-b", DISPATCH)
        assert len(first.claims) == 1 and first.missed == set()
        assert second.claims == [] and second.missed == {due.jobs[0].job_id}

    def test_the_slot_is_recorded_with_its_claim(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        (run,) = world.runs(name)
        assert (run.state, run.prior_state, run.kind, run.attempt) == ("claimed", "scheduled", "schedule", 1)
        assert (run.run_id, run.scheduled_for, run.claimed_by) == (claim.run_id, claim.slot.scheduled_for, "beat-1")
        assert run.fence == claim.fence == world.job(name).fence
        assert run.claimed_at == world.job(name).claimed_at == world.near(world.noon)

    def test_a_claim_holds_its_job_until_the_time_to_dispatch_is_over(self, world: World) -> None:
        name = world.add()
        claim = world.claim_one()
        job = world.job(name)
        assert (job.run_id, job.published_at, job.started_retry) == (claim.run_id, None, None)
        assert job.lease_ends_at == world.near(world.noon + timedelta(seconds=DISPATCH))

    def test_each_claim_raises_the_fence(self, world: World) -> None:
        name = world.add(schedule="every 1s")
        fences = [world.job(name).fence]
        for _ in range(3):
            run = world.running()
            fences.append(run.fence)
            world.finish(run)
            world.later(1)
        assert fences == sorted(set(fences))

    def test_claim_ids_and_run_ids_differ_from_claim_to_claim(self, world: World) -> None:
        for _ in range(20):
            world.add()
        claims = world.claim().claims
        assert len({claim.claim_id for claim in claims}) == 20
        assert len({claim.run_id for claim in claims}) == 20

    def test_nothing_is_claimed_before_its_time(self, world: World) -> None:
        at = world.noon + timedelta(microseconds=1)
        world.add(next_run_time=at)
        world.at(world.noon)
        assert world.claim().jobs_read == 0
        world.at(at)
        assert len(world.claim().claims) == 1

    def test_a_disabled_job_is_not_claimed(self, world: World) -> None:
        world.add(enabled=False)
        assert world.claim().jobs_read == 0

    def test_another_namespace_is_not_seen(self, world: World) -> None:
        world.add()
        assert world.sibling().due(10).jobs == []

    def test_a_batch_is_the_earliest_due_and_no_larger_than_asked(self, world: World) -> None:
        names = [world.add(next_run_time=world.noon - n * SECOND) for n in range(10)]
        claimed = world.claim(batch=4)
        assert {claim.job_name for claim in claimed.claims} == set(names[-4:])
        assert claimed.jobs_read == 4

    def test_shares_together_are_all_due_jobs_and_have_none_in_common(self, world: World) -> None:
        ids = {world.job(world.add()).job_id for _ in range(30)}
        shares = [[job.job_id for job in world.store.due(100, share=digit).jobs] for digit in EVERY_SHARE]
        assert sorted(job_id for share in shares for job_id in share) == sorted(ids)
        for digit, share in zip(EVERY_SHARE, shares, strict=True):
            assert all(job_id.endswith(digit) for job_id in share)

    def test_jobs_whose_rows_were_locked_a_moment_ago_are_left_out_where_asked(self, world: World) -> None:
        """A store that never locks rows may return them; no other job is left out."""
        locked, other = world.job(world.add()).job_id, world.job(world.add()).job_id
        job_ids = {job.job_id for job in world.store.due(10, besides=[locked]).jobs}
        assert other in job_ids

    def test_due_jobs_are_only_read(self, world: World) -> None:
        name = world.add()
        before = world.job(name)
        assert len(world.store.due(10).jobs) == len(world.another_store().due(10).jobs) == 1
        assert world.job(name)[:-1] == before[:-1]
        assert world.runs(name) == []

    def test_a_plan_of_a_job_that_was_changed_since_it_was_read_changes_nothing(self, world: World) -> None:
        name, other = world.add(), world.add()
        due = world.store.due(10)
        plan = world.planner(due)
        world.change(name, task_name="app.other")
        claimed = world.store.claim(due, plan, "beat-1", DISPATCH)
        assert [claim.job_name for claim in claimed.claims] == [other]
        assert claimed.missed == {world.job(name).job_id}
        assert world.runs(name) == [] and world.job(name).locked_by is None
        assert world.claim_one().task_name == "app.other"

    def test_a_plan_of_a_job_that_was_paused_since_it_was_read_changes_nothing(self, world: World) -> None:
        name = world.add()
        due = world.store.due(10)
        world.write(PauseJob(name, "month end"))
        claimed = world.store.claim(due, world.planner(due), "beat-1", DISPATCH)
        assert (claimed.claims, claimed.missed) == ([], {due.jobs[0].job_id})
        assert world.runs(name) == []

    def test_a_plan_of_a_job_that_was_deleted_since_it_was_read_changes_nothing(self, world: World) -> None:
        name = world.add()
        due = world.store.due(10)
        world.write(DeleteJob(name))
        assert world.store.claim(due, world.planner(due), "beat-1", DISPATCH).claims == []
        assert not world.is_there(name)

    def test_a_gap_and_an_advance_are_recorded_only_where_their_job_is_as_it_was_read(self, world: World) -> None:
        late = world.add(next_run_time=world.noon - 95 * SECOND, policies='{"misfire": "skip", "misfire_grace": 30}')
        due = world.store.due(10)
        plan = world.planner(due)
        world.change(late, task_name="app.other")
        claimed = world.store.claim(due, plan, "beat-1", DISPATCH)
        assert (claimed.gaps, claimed.advanced, claimed.missed) == ([], 0, {world.job(late).job_id})
        assert world.runs(late) == [] and world.job(late).next_run_time == world.noon - 95 * SECOND

    def test_a_job_that_was_corrected_and_claimed_since_it_was_read_is_not_quarantined(self, world: World) -> None:
        name = world.add(args="nonsense")
        due = world.store.due(10)
        world.change(name, args=None)
        world.claim_one()
        claimed = world.store.claim(due, world.planner(due), "beat-2", DISPATCH)
        assert (claimed.quarantines, claimed.missed) == ([], {world.job(name).job_id})
        assert world.job(name).quarantine is None

    def test_a_job_that_was_corrected_since_it_was_read_is_not_quarantined(self, world: World) -> None:
        name = world.add(args="nonsense")
        due = world.store.due(10)
        world.change(name, args=None)
        claimed = world.store.claim(due, world.planner(due), "beat-1", DISPATCH)
        assert (claimed.quarantines, claimed.missed) == ([], {world.job(name).job_id})
        assert world.claim_one().job_name == name

    def test_the_message_gets_what_the_job_says(self, world: World) -> None:
        world.add(args='[1, "ü"]', kwargs='{"a": null}', options='{"queue": "q"}', lock_timeout_minutes=7)
        claim = world.claim_one()
        assert (list(claim.args), claim.kwargs, claim.options) == ([1, "ü"], {"a": None}, {"queue": "q"})
        assert claim.lease_seconds == 420

    def test_slots_missed_are_one_run_and_one_record(self, world: World) -> None:
        name = world.add(next_run_time=world.noon - 605 * SECOND)
        claim = world.claim_one()
        assert claim.slot.scheduled_for == world.noon - 5 * SECOND
        gap, run = world.runs(name)
        assert (gap.state, gap.reason, gap.slot_count) == ("skipped", "misfire", 10)
        assert (gap.scheduled_for, gap.last_slot) == (world.noon - 605 * SECOND, world.noon - 65 * SECOND)
        assert run.state == "claimed"

    def test_slots_missed_while_the_run_before_went_on_are_overlap(self, world: World) -> None:
        world.at(world.noon)
        name = world.add(schedule="cron * * * * *")
        run = world.running()
        world.later(300)
        world.extend(run, seconds=600)
        world.finish(run)
        world.claim_one()
        states = [(run.state, run.reason) for run in world.runs(name)]
        assert states == [("success", None), ("skipped", "overlap"), ("claimed", None)]

    def test_a_job_too_late_for_its_policy_skips_to_its_next_slot(self, world: World) -> None:
        name = world.add(next_run_time=world.noon - 95 * SECOND, policies='{"misfire": "skip", "misfire_grace": 30}')
        assert world.claim().claims == []
        assert world.states(name) == ["skipped"]
        assert world.job(name).next_run_time > world.noon

    def test_a_job_that_is_set_back_to_a_slot_that_ran_gets_a_further_attempt_of_it(self, world: World) -> None:
        """Two jobs share a batch: the one set back must not keep the other from its run."""
        name = world.add()
        slot = world.job(name).next_run_time
        world.finish(world.running())
        world.change(name, next_run_time=slot)
        other = world.add()
        assert {claim.job_name for claim in world.claim().claims} == {name, other}
        assert [(run.state, run.attempt) for run in world.runs(name)] == [("success", 1), ("claimed", 2)]

    def test_a_once_job_runs_once_and_is_finished(self, world: World) -> None:
        world.at(world.noon)
        name = world.add(schedule="once 2027-03-01T12:00:00Z")
        world.finish(world.running())
        job = world.job(name)
        assert (job.enabled, job.disabled_reason, job.next_run_time) == (0, "finished", None)
        world.later(3600)
        assert world.claim().jobs_read == 0

    def test_a_wrong_job_goes_to_quarantine_with_its_reason_and_the_others_run(self, world: World) -> None:
        wrong, right = world.add(args="nonsense"), world.add()
        fired = world.claim()
        assert [claim.job_name for claim in fired.claims] == [right]
        assert [quarantine.job_name for quarantine in fired.quarantines] == [wrong]
        job = world.job(wrong)
        assert job.quarantine is not None and job.quarantine.startswith("Args = ")
        assert (job.locked_by, job.args, world.runs(wrong)) == (None, "nonsense", [])
        assert list(world.store.jobs(JobQuery(only_quarantined=True))) == [wrong]

    def test_a_job_in_quarantine_is_not_read_again_until_it_is_changed(self, world: World) -> None:
        name = world.add(args="nonsense")
        assert [world.claim().jobs_read, world.claim().jobs_read] == [1, 0]
        world.change(name, args=None)
        assert world.job(name).quarantine is None
        assert world.claim_one().job_name == name

    def test_a_job_of_code_is_claimed_only_by_a_beat_that_has_the_code(self, world: World) -> None:
        add_from_code(world, "", code_job("lazy", code_key="abc"))
        assert world.claim().jobs_read == 0
        (claim,) = world.claim(claimable=Claimable(code_keys=["x", "abc"])).claims
        assert claim.code_key == "abc"

    def test_a_beat_claims_the_jobs_of_its_app_and_those_of_none(self, world: World) -> None:
        for owner in ("shop", "office"):
            add_from_code(world, owner, code_job(f"{owner}-job"))
        world.add("dbas")
        names = {claim.job_name for claim in world.claim(claimable=Claimable("shop")).claims}
        assert names == {"shop-job", "dbas"}
        (claim,) = world.claim(claimable=Claimable("office")).claims
        assert claim.job_name == "office-job"

    def test_a_beat_leaves_to_another_one_the_entries_that_it_lacks(self, world: World) -> None:
        for name in ("mine", "theirs"):
            add_from_code(world, "shop", code_job(name))
        assert world.claim(claimable=Claimable("shop", (), (), ["no other"])).claims == []
        (claim,) = world.claim(claimable=Claimable("shop", (), ["theirs"])).claims
        assert claim.job_name == "mine"
        (claim,) = world.claim().claims
        assert claim.job_name == "theirs"

    @pytest.mark.parametrize("seconds", [0, 3600])
    def test_a_job_whose_schedule_only_code_knows_is_left_as_it_is_without_the_code(
        self, world: World, seconds: int
    ) -> None:
        definition = code_job("custom", schedule=CODE_SCHEDULE, code_key="abc")
        add_from_code(world, "", definition, at=world.noon - seconds * SECOND)
        assert world.claim().jobs_read == 0
        assert world.job("custom").quarantine is None

    def test_a_retry_waits_for_its_own_time(self, world: World) -> None:
        world.add(next_run_time=world.noon - HOUR, schedule="every 7d")
        world.finish(world.running(), world.failure(8.0))
        assert world.claim().jobs_read == 0
        world.later(8)
        assert world.claim_one().slot.attempt == 2

    def test_what_each_claim_plans_next_is_later_than_its_slot(self, world: World) -> None:
        world.add(next_run_time=world.noon - 5 * MINUTE)
        claim = world.claim_one()
        assert claim.slot.planned_at is not None and claim.slot.planned_at > claim.slot.scheduled_for


def code_job(name: str, **fields: Any) -> CodeDefinition:
    """Return an entry of a `beat_schedule`."""
    return CodeDefinition(name, "app.task", "every 60s", "UTC", None, None, None, None)._replace(**fields)


def add_from_code(world: World, owner: str, definition: CodeDefinition, at: datetime | None = None) -> None:
    """Import one entry of an app, due now unless said otherwise."""
    state = world.store.code_state(owner, "v1", 60.0)
    addition = CodeAddition(world.ids.random_id(), definition, at or world.now, None)
    changes = CodeChanges([addition], [], [])
    assert world.store.import_code(CodeImport(owner, "v1", None, 60.0, state.beside, changes)).added
