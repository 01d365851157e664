"""What is due, read by its indexes: crowds, shares, and jobs that stand before it for others."""

from datetime import timedelta

import pytest

from celery_sqlbeat.errors import DatabaseUnavailable
from celery_sqlbeat.model import Claimable
from celery_sqlbeat.store.keyvalue.rows import ABSENT, Change, Row
from celery_sqlbeat.store.keyvalue.store import KeyValueStore
from celery_sqlbeat.store.keyvalue.tables import JOB, OWNER, micros
from tests.unit.store.keyvalue.steps import BEAT, DISPATCH, NOON, Interrupted, Steps


def job_id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


def crowd(amount: int, owner: str | None = None, first: int = 0, **fields: object) -> list[Change]:
    """Return jobs that are all due at noon; their names count on."""
    return [
        Change({(JOB, job_id(number)): (ABSENT, _row(f"job-{number}", owner, fields))})
        for number in range(first, first + amount)
    ] + ([Change({(OWNER, owner): (ABSENT, {})})] if owner else [])


def _row(name: str, owner: str | None, fields: dict[str, object]) -> Row:
    plain = {"job_name": name, "task_name": "t", "schedule": "every 60s", "enabled": 1, "version": 1, "fence": 0}
    facts = {"next_run_time": micros(NOON), **fields} | ({"code_owner": owner} if owner else {})
    return plain | {name: value for name, value in facts.items() if value is not None}


@pytest.fixture
def steps() -> Steps:
    return Steps()


def names(steps: Steps, *arguments: object, **options: object) -> list[str]:
    return [job.job_name for job in steps.store.due(*arguments, **options).jobs]  # type: ignore[arg-type]


def test_a_batch_is_not_larger_than_asked_for_and_has_the_earliest_first(steps: Steps) -> None:
    steps.place.write(crowd(5) + crowd(1, first=9, next_run_time=micros(NOON - timedelta(seconds=1))))
    assert names(steps, 3) == ["job-9", "job-0", "job-1"]


def test_shares_divide_a_crowd_that_is_due_at_one_instant(steps: Steps) -> None:
    steps.place.write(crowd(160))
    shares = ["0123", "4567", "89ab", "cdef"]
    found_names = [names(steps, 500, share=share) for share in shares]
    assert [len(part) for part in found_names] == [40] * 4
    assert len(set().union(*found_names)) == 160
    assert all(len(names(steps, 10, share=share)) == 10 for share in shares)


def test_jobs_that_were_locked_a_moment_ago_are_passed_by(steps: Steps) -> None:
    steps.place.write(crowd(5))
    assert names(steps, 2, besides=[job_id(0), job_id(1)]) == ["job-2", "job-3"]


def test_a_crowd_of_entries_that_only_others_can_build_hides_nothing(steps: Steps) -> None:
    steps.place.write(crowd(300, "app", code_key="theirs") + crowd(1, "app", first=900, code_key="mine"))
    mine = Claimable("app", ["mine"])
    assert names(steps, 2, mine) == ["job-900"]
    assert steps.store.next_deadlines(mine).due_at == NOON
    assert steps.store.next_deadlines(Claimable("app", ["nobody's"])).due_at is None


def test_a_crowd_of_entries_that_this_beat_lacks_hides_nothing(steps: Steps) -> None:
    steps.place.write(crowd(300, "app") + crowd(1, "app", first=900, next_run_time=micros(NOON) + 5))
    steps.clock.later(1)
    other = Claimable("app", (), [f"job-{number}" for number in range(300)])
    assert names(steps, 2, other) == ["job-900"]
    assert steps.store.next_deadlines(other).due_at == NOON + timedelta(microseconds=5)


def test_a_beat_of_no_app_in_particular_claims_for_all(steps: Steps) -> None:
    steps.place.write(crowd(1) + crowd(1, "app", first=1) + crowd(1, "other", first=2))
    assert sorted(names(steps, 9)) == ["job-0", "job-1", "job-2"]
    assert sorted(names(steps, 9, Claimable("app"))) == ["job-0", "job-1"]


def test_a_crowd_of_extra_slots_of_held_jobs_hides_nothing(steps: Steps) -> None:
    held, free = steps.add("held"), steps.add("free", next_run_time=NOON + timedelta(hours=1))
    steps.claim()
    for _ in range(20):
        steps.enqueue(held)
        steps.clock.later(0.001)
    steps.enqueue(free)
    assert names(steps, 2) == ["free"]
    assert steps.store.next_deadlines().outbox_at == steps.clock.now


def test_the_next_deadline_may_be_asked_for_behind_an_instant(steps: Steps) -> None:
    steps.add("now")
    steps.add("later", next_run_time=NOON + timedelta(hours=1))
    assert steps.store.next_deadlines(after=NOON).due_at == NOON + timedelta(hours=1)


def test_a_claim_without_an_answer_is_given_back_as_soon_as_the_place_is_there_again(steps: Steps) -> None:
    """Else its job waits until the claim's time is over."""
    steps.add()
    interrupted = Interrupted(steps.place)
    store = KeyValueStore(interrupted)
    due, plan = steps.due()

    def commit_and_break() -> None:
        steps.store.claim(due, plan, BEAT, DISPATCH)
        raise DatabaseUnavailable("the answer was lost")

    interrupted.actions.append(commit_and_break)
    with pytest.raises(DatabaseUnavailable):
        store.claim(due, plan, BEAT, DISPATCH)
    assert steps.states() == ["claimed"]
    assert [job.job_name for job in store.due(10).jobs] == ["job"]
    assert steps.states() == ["scheduled"]
