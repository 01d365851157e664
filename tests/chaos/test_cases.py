"""The judge knows the particular jobs of the storm.

A history of each that is well, and one that breaks its promise.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.chaos.history import Doubt, Freeze, Hang, History, Job, Kill, Limits, Run
from tests.chaos.judge import broken_promises
from tests.chaos.test_history import CLOCK, JOB, body, ended, run, slot
from tests.chaos.witnesses import Body

LEFT: dict[str, Any] = {"state": "dispatched", "reason": "left to the strategy of its task"}
SHARED = Job(1.0, False, 1)
BACKLOG = Job(1.0, False, 1, is_backlog=True)
BOUNDED = Job(1.0, True, 1, max_runtime=2.0)
OVERDUE: dict[str, Any] = {"state": "retry", "reason": "max_runtime of 2 s exceeded"}


def judged(bodies: Sequence[Body], runs: Sequence[Run], job: Job, until: int = 0, **facts: Any) -> list[str]:
    limits = Limits(3.0, 6.0, 10.0)
    broken = broken_promises(
        History(bodies, runs, {"job": job}, facts.pop("freezes", ()), slot(until), 1, CLOCK, (), limits, **facts)
    )
    return sorted({text.partition(":")[0] for text in broken})


@pytest.mark.parametrize("how", ["batch", "at once"])
def test_a_run_that_a_strategy_took_once_and_that_ends_as_dispatched_is_well(how: str) -> None:
    assert judged([body(0)], [run(0, **LEFT)], Job(1.0, False, 1, strategy=how)) == []


@pytest.mark.parametrize(
    ("how", "bodies", "runs", "broken"),
    [
        pytest.param("batch", [body(0)], [run(0)], ["G3 strategies"], id="a success that nobody could tell"),
        pytest.param(
            "batch",
            [body(0), body(0, began=101.0, last_seen=101.1)],
            [run(0, **LEFT)],
            ["G3 one start", "G3 strategies"],
            id="a message that was taken twice",
        ),
        pytest.param("at once", [], [run(0, **LEFT)], ["G3 strategies"], id="acknowledged and not run"),
        pytest.param("at once", [body(0, ended=None)], [run(0, **LEFT)], ["G3 strategies"], id="acknowledged too soon"),
    ],
)
def test_a_strategy_that_is_not_left_alone_is_found(
    how: str, bodies: list[Body], runs: list[Run], broken: list[str]
) -> None:
    assert judged(bodies, runs, Job(1.0, False, 1, strategy=how)) == broken


def test_a_batch_may_lose_what_it_had_acknowledged() -> None:
    assert judged([], [run(0, **LEFT)], Job(1.0, False, 1, strategy="batch")) == []


def plain(began: float, seconds: float, fence: int = 1, redelivered: bool = False) -> Body:
    return body(0, leased=False, attempt=1, began=began, last_seen=began + seconds, fence=fence, ended="ends")._replace(
        redelivered=redelivered
    )


LONG_AGO = [Doubt(0.0, 50.0)]
TAKEN = [run(0, state="dispatched", reason="left to a worker without celery-sqlbeat")]


@pytest.mark.parametrize(
    ("other", "doubts", "broken"),
    [
        pytest.param(None, [], [], id="it runs alone"),
        pytest.param(body(0, fence=1, began=105.0, last_seen=105.1), [], ["G3 not beside itself"], id="a copy is sent"),
        pytest.param(plain(105.0, 0.1), [], ["G3 not beside itself"], id="to another plain worker"),
        pytest.param(plain(110.0, 0.1), [], [], id="after it has ended"),
        pytest.param(body(0, fence=2, began=105.0, last_seen=105.1), [], [], id="its claim had been given back"),
        pytest.param(plain(105.0, 0.1), [Doubt(99.0, 104.0)], [], id="its connection broke"),
        pytest.param(plain(105.0, 0.1), LONG_AGO, ["G3 not beside itself"], id="a connection broke long before"),
    ],
)
def test_a_run_that_goes_on_twice_at_once_is_found(other: Body | None, doubts: list[Doubt], broken: list[str]) -> None:
    bodies = [plain(100.0, 9.0), *([other] if other else [])]
    assert judged(bodies, TAKEN, SHARED, doubts=doubts) == broken


@pytest.mark.parametrize(
    ("after", "redelivered", "broken"),
    [(14.0, True, []), (14.0, False, ["G3 not beside itself"]), (2.0, True, ["G3 not beside itself"])],
)
def test_redis_takes_a_message_for_lost_that_a_frozen_worker_has(
    after: float, redelivered: bool, broken: list[str]
) -> None:
    limits = Limits(3.0, 6.0, 10.0, unacknowledged=15.0)
    bodies = [plain(100.0, 20.0), plain(100.0 + after, 0.1, redelivered=redelivered)]
    history = History(bodies, TAKEN, {"job": SHARED}, (), slot(0), 1, CLOCK, (), limits)
    assert sorted({text.partition(":")[0] for text in broken_promises(history)}) == broken
    assert judged(bodies, TAKEN, SHARED) == ["G3 not beside itself"], "no other broker does that"


@pytest.mark.parametrize(
    ("first", "redelivered", "broken"),
    [
        pytest.param(plain(100.0, 0.5)._replace(ended=None), True, [], id="its worker was killed"),
        pytest.param(plain(100.0, 0.5)._replace(ended=None), False, ["G3 not beside itself"], id="it is a copy"),
        pytest.param(plain(100.0, 0.5), True, ["G3 not beside itself"], id="it was acknowledged"),
        pytest.param(body(0, fence=1, began=100.0, ended=None), True, ["G3 not beside itself"], id="it was leased"),
    ],
)
def test_redis_delivers_what_a_killed_worker_had_beside_a_copy(
    first: Body, redelivered: bool, broken: list[str]
) -> None:
    limits = Limits(3.0, 6.0, 10.0, unacknowledged=15.0)
    bodies = [first, plain(118.0, 11.0), plain(118.5, 5.0, redelivered=redelivered)]
    history = History(bodies, TAKEN, {"job": SHARED}, (), slot(0), 1, CLOCK, (), limits)
    assert sorted({text.partition(":")[0] for text in broken_promises(history)}) == broken


def lives(*fences: int) -> tuple[list[Body], list[Run]]:
    bodies = [body(at, fence=fence) for at, fence in enumerate(fences)]
    return bodies, [run(at, fence=fence) for at, fence in enumerate(fences)]


@pytest.mark.parametrize("by", ["by the package", "by hand"])
def test_the_fences_of_a_job_that_is_defined_again_go_on(by: str) -> None:
    job = Job(1.0, by == "by the package", 1, is_deleted=by)
    assert judged(*lives(1, 2, 5), job, until=2) == []
    assert judged(*lives(4, 5, 5), job, until=2) == ["G4 fencing"]
    assert judged(*lives(4, 5, 1), job, until=2) == ["G4 fencing"]
    bodies, runs = lives(4, 5, 1)
    assert judged(bodies[:2], [*runs[:2], runs[2]._replace(state="claimed")], job, until=1) == ["G4 fencing"]


def test_a_deleted_job_has_no_slots_until_it_is_defined_again_and_leaves_none_open() -> None:
    job = Job(1.0, True, 1, is_deleted="by the package")
    bodies, runs = lives(1, 2, 3, 4)
    assert judged([bodies[0], bodies[3]], [runs[0], runs[3]], job, until=3) == []
    stays = runs[0]._replace(state="running")
    assert judged(bodies[3:], [stays, runs[3]], job, until=3) == ["G2 no lost fire"]
    assert judged(bodies[3:], [stays, runs[3]], job._replace(is_deleted="by hand"), until=3) == []
    assert judged(bodies[:1], runs[:1], JOB, until=3) == ["G2 no lost fire"]


def test_a_body_that_returned_is_no_failure_whatever_becomes_of_its_result() -> None:
    stores = Job(1.0, True, 1, stores_result=True)
    again = run(0, 2, failures=1)
    failed = run(0, 1, "retry", reason="failed", failures=1)
    bodies = [body(0), body(0, 2)]
    assert judged([body(0)], [run(0, reason="result not stored")], stores) == []
    assert judged(bodies, [failed, again], stores) == ["G10 returned"]
    assert judged(bodies, [failed, again], stores, child_kills=[Kill(7, False, 100.35)]) == []
    assert judged(bodies, [failed, again], stores, child_kills=[Kill(8, False, 100.35)]) == ["G10 returned"]
    assert judged(bodies, [failed._replace(reason="lease lost", failures=0, lost_leases=1), again], stores) == []


HUNG = body(0, ended=None, last_seen=100.5)
NEXT = [body(0, 2, began=103.0, last_seen=103.1)]
AGAIN = run(0, 2, failures=1)


@pytest.mark.parametrize(
    ("first", "bodies", "is_timed", "broken"),
    [
        pytest.param(ended(0, 2.5, **OVERDUE, failures=1), NEXT, True, [], id="stopped, counted, goes on"),
        pytest.param(ended(0, 13.0, **OVERDUE, failures=1), NEXT, False, ["G10 max_runtime"], id="stopped late"),
        pytest.param(ended(0, 2.5, state="success"), [], False, ["G10 max_runtime", "G4 outcomes"], id="a success"),
        pytest.param(run(0, state="running"), [], False, ["G10 max_runtime", "G2 no lost fire"], id="never stopped"),
        pytest.param(ended(0, 2.5, **OVERDUE), NEXT, False, ["G10 max_runtime"], id="not counted"),
        pytest.param(ended(0, 2.5, **OVERDUE, failures=1), [], True, ["G10 max_runtime"], id="the job stands still"),
        pytest.param(
            ended(0, 2.5, state="retry", reason="lease lost", lost_leases=1),
            NEXT,
            False,
            [],
            id="its worker was killed",
        ),
        pytest.param(
            ended(0, 2.5, state="retry", reason="lease lost", lost_leases=1),
            NEXT,
            True,
            ["G10 max_runtime"],
            id="stopped by nobody while all was well",
        ),
    ],
)
def test_a_hung_body_is_stopped_and_counted_and_its_job_goes_on(
    first: Run, bodies: list[Body], is_timed: bool, broken: list[str]
) -> None:
    follows = first.state == "retry"
    last = AGAIN._replace(failures=first.failures, lost_leases=first.lost_leases)
    if follows and not bodies:
        last = last._replace(state="skipped")
    hangs = [Hang(first.run, 7, 100.4, is_timed)]
    assert judged([HUNG, *bodies], [first, *([last] if follows else [])], BOUNDED, hangs=hangs) == broken


def test_a_hung_body_whose_worker_stood_still_may_be_stopped_late() -> None:
    late = ended(0, 13.0, **OVERDUE, failures=1)
    told: dict[str, Any] = {"hangs": [Hang(late.run, 7, 100.4, False)]}
    bodies, runs = [HUNG, body(0, 2, began=113.5, last_seen=113.6)], [late, AGAIN]
    assert judged(bodies, runs, BOUNDED, freezes=[Freeze(7, 101.0, 112.0)], **told) == []
    assert judged(bodies, runs, BOUNDED, freezes=[Freeze(8, 101.0, 112.0)], **told) == ["G10 max_runtime"]


@pytest.mark.parametrize(
    ("state", "reason", "bodies", "broken"),
    [
        pytest.param("success", None, [body(0)], [], id="it ran"),
        pytest.param("skipped", "overlap", [], [], id="it says that another run held its job"),
        pytest.param("dispatched", None, [], ["G2 backlog"], id="dropped in silence"),
        pytest.param("dispatched", "never started", [], ["G2 backlog"], id="given up"),
        pytest.param("skipped", None, [], ["G2 backlog"], id="skipped for no reason"),
        pytest.param("success", None, [body(0), body(0, began=102.0, last_seen=102.1)], ["G3 one start"], id="twice"),
    ],
)
def test_a_message_that_waited_for_its_first_worker_runs_or_its_slot_says_why_not(
    state: str, reason: str | None, bodies: list[Body], broken: list[str]
) -> None:
    assert judged(bodies, [run(0, state=state, reason=reason)], BACKLOG) == broken
