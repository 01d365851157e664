"""History: attempts as they are listed, purged, and told to those who end results."""

from datetime import datetime

from celery_sqlbeat.store.purges import OldRuns
from celery_sqlbeat.store.records import RunNote, RunQuery
from celery_sqlbeat.testing.contract.base import Contract
from celery_sqlbeat.testing.world import OVERLAP, World

DAY = 86400.0


class HistoryContract(Contract):
    """Rules of `runs`, `running`, `purge` and `unended_results`."""

    def test_history_is_read_newest_first_and_page_by_page(self, world: World) -> None:
        name = world.add(schedule="every 1s")
        slots = ran(world, 4)
        job_id = world.job(name).job_id
        newest = sorted(slots, reverse=True)
        assert [run.scheduled_for for run in world.store.runs(RunQuery(job_id=job_id, page_size=10))] == newest
        page = world.store.runs(RunQuery(job_id=job_id, page_size=2))
        rest = world.store.runs(RunQuery(job_id=job_id, after=page[-1], page_size=2))
        assert [run.scheduled_for for run in (*page, *rest)] == newest

    def test_the_history_of_all_jobs_is_read_page_by_page(self, world: World) -> None:
        for _ in range(5):
            world.add()
        claims = world.claim().claims
        pages, after = [], None
        while page := world.store.runs(RunQuery(page_size=2, after=after)):
            pages.append(page)
            after = page[-1]
        listed = [run.run_id for page in pages for run in page]
        assert listed == sorted((claim.run_id for claim in claims), reverse=True)
        assert [len(page) for page in pages] == [2, 2, 1]

    def test_a_page_that_ends_between_two_attempts_of_a_slot_loses_neither(self, world: World) -> None:
        name = world.add()
        for _ in range(3):
            world.finish(world.running(), world.failure(0.0))
        job_id = world.job(name).job_id
        first = world.store.runs(RunQuery(job_id=job_id, page_size=2))
        rest = world.store.runs(RunQuery(job_id=job_id, after=first[-1], page_size=2))
        assert [run.attempt for run in (*first, *rest)] == [3, 2, 1]

    def test_attempts_in_one_state_are_found_page_by_page(self, world: World) -> None:
        for _ in range(6):
            world.add()
        claims = world.claim().claims
        wanted = {claims[1].run_id, claims[4].run_id}
        for claim in (claims[1], claims[4]):
            world.finish(world.begin(claim))
        listed, after = set(), None
        while page := world.store.runs(RunQuery(state="success", page_size=2, after=after)):
            listed |= {run.run_id for run in page if run.state == "success"}
            after = page[-1]
        assert listed == wanted

    def test_attempts_are_found_by_their_ids(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        assert world.run(claim.run_id).job_name == claim.job_name
        assert world.store.runs(RunQuery(run_ids=[world.ids.random_id()])) == []
        assert world.store.runs(RunQuery(run_ids=[])) == []

    def test_another_namespace_sees_no_history(self, world: World) -> None:
        world.add()
        claim = world.claim_one()
        sibling = world.sibling()
        assert sibling.runs(RunQuery()) == []
        assert sibling.runs(RunQuery(job_id=claim.job_id)) == []
        assert sibling.runs(RunQuery(run_ids=[claim.run_id])) == []

    def test_runs_that_go_on_are_listed_with_their_jobs_also_those_beside_others(self, world: World) -> None:
        alone, beside, waiting = world.add("alone"), world.add("beside", policies=OVERLAP), world.add("waiting")
        claims = {claim.job_name: claim for claim in world.claim().claims}
        world.publish(claims[alone], claims[waiting])
        runs = {name: world.begin(claims[name]).run_id for name in (alone, beside)}
        assert world.store.running(10.0, 10) == []
        world.later(11)
        listed = world.store.running(10.0, 10)
        assert {row.job_name: row.run_id for row in listed} == runs
        assert all((row.now - row.started_at).total_seconds() >= 10 and row.worker == "worker-1" for row in listed)
        assert len(world.store.running(10.0, 1)) == 1
        assert world.store.running(60.0, 10) == []

    # Purges

    def test_history_older_than_asked_is_purged_in_batches_oldest_first(self, world: World) -> None:
        name = world.add(schedule="every 1s")
        slots = ran(world, 5)
        waiting = world.running()
        world.later(DAY)
        first = world.store.purge(OldRuns(3600, limit=3))
        assert (first.rows, first.last, first.refused) == (3, slots[2], {})
        second = world.store.purge(OldRuns(3600, first.last, limit=3))
        assert (second.rows, second.last) == (2, slots[4])
        assert world.store.purge(OldRuns(3600, limit=3)).rows == 0
        assert world.states(name) == ["running"]
        assert world.finish(waiting)

    def test_history_that_is_young_enough_is_kept(self, world: World) -> None:
        name = world.add(schedule="every 1s")
        ran(world, 2)
        assert world.store.purge(OldRuns(3600, limit=100)).rows == 0
        assert world.states(name) == ["success", "success"]

    def test_a_failed_attempt_that_waits_is_not_purged(self, world: World) -> None:
        name = world.add()
        world.finish(world.running(), world.failure(7200.0))
        world.later(7000)
        world.store.purge(OldRuns(60, limit=100))
        assert world.states(name) == ["retry"]
        world.later(300)
        assert world.claim_one().slot.attempt == 2

    def test_dead_letters_outlive_the_purge_of_history(self, world: World) -> None:
        world.add(policies='{"max_retries": 0}', schedule="every 7d")
        world.finish(world.running(), world.failure(0.0)._replace(state="dlq", retry_seconds=None))
        (letter,) = world.letters()
        world.later(365 * DAY)
        world.store.purge(OldRuns(DAY, limit=100))
        assert world.letters() == [letter]

    def test_another_namespace_purges_no_history(self, world: World) -> None:
        name = world.add(schedule="every 1s")
        ran(world, 2)
        world.later(DAY)
        assert world.sibling().purge(OldRuns(0, limit=100)).rows == 0
        assert len(world.states(name)) == 2

    # Results

    def test_a_slot_that_ended_with_a_later_attempt_is_told_once_with_those_before(self, world: World) -> None:
        world.add("again", task_name="shop.add", options='{"ignore_result": true}')
        first = world.running()
        world.finish(first, world.failure(1.0))
        assert world.store.unended_results(10, 60.0) == []
        world.later(1)
        second = world.running()
        assert world.store.unended_results(10, 60.0) == []
        world.finish(second)
        (slot,) = world.store.unended_results(10, 60.0)
        assert (slot.run_id, slot.job_name, slot.attempt, slot.state) == (second.run_id, "again", 2, "success")
        assert (slot.task_name, slot.options) == ("shop.add", '{"ignore_result": true}')
        assert slot.earlier == ((first.run_id, 1),)
        others = RunNote(second.run_id, world.ids.random_id(), results_ended=True)
        assert world.store.note_runs([others]).done == set()
        assert world.store.unended_results(10, 60.0) == [slot]
        noted = world.store.note_runs([RunNote(run.run_id, results_ended=True) for run in (first, second)])
        assert noted.done == {first.run_id, second.run_id}
        assert world.store.unended_results(10, 60.0) == []

    def test_a_slot_that_ended_with_its_first_attempt_has_no_results_to_end(self, world: World) -> None:
        world.add()
        world.finish(world.running())
        assert world.store.unended_results(10, 60.0) == []


def ran(world: World, count: int) -> list[datetime]:
    """Let the only job run so often, every second; return its slots."""
    slots: list[datetime] = []
    for _ in range(count):
        run = world.running()
        slots.append(run.scheduled_for)
        world.finish(run)
        world.later(1)
    return slots
